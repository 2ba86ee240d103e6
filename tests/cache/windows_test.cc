// Cells behind a window of attention: when they are dead, and what is held of a sequence then.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "cache/groups_fixture.h"
#include "cache/sequences/kv_cache.h"
#include "plan/kv_placement.h"

namespace kvasir {
namespace {

constexpr SeqId kA{1}, kB{2};

std::vector<Token> tokens(uint32_t n) {
  std::vector<Token> out(n);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

// So many layers, a group each, of which every `period`th attends to everything.
CacheGeometry geometry_of(uint32_t block_tokens, uint32_t layers, uint32_t window, uint32_t period) {
  CacheGeometry g = {block_tokens, layers, 1, 8};
  std::vector<uint32_t> windows(layers, window);
  for (uint32_t l = period - 1; l < layers; l += period) windows[l] = 0;
  g.set_windows(windows);
  return g;
}

TEST(Windows, ABlockIsDeadWhenNoRowToComeReachesIt) {
  CacheGeometry g = geometry_of(64, 2, 96, 2);
  // The row at 159 sees [64, 160), the row at 158 sees 63 as well.
  EXPECT_EQ(g.dead_blocks(0), 0u);
  EXPECT_EQ(g.dead_blocks(95), 0u);
  EXPECT_EQ(g.dead_blocks(158), 0u);
  EXPECT_EQ(g.dead_blocks(159), 1u);
  EXPECT_EQ(g.dead_blocks(222), 1u);
  EXPECT_EQ(g.dead_blocks(223), 2u);
  g = geometry_of(64, 2, 256, 2);
  EXPECT_EQ(g.dead_blocks(318), 0u);
  EXPECT_EQ(g.dead_blocks(319), 1u);
  g = geometry_of(16, 2, 1, 2);  // a row sees itself
  EXPECT_EQ(g.dead_blocks(15), 0u);
  EXPECT_EQ(g.dead_blocks(16), 1u);
  EXPECT_EQ(geometry_of(16, 2, 0, 2).dead_blocks(1000), 0u);
}

TEST(Windows, WithXTheLastBlockMayBeginAgain) {
  CacheGeometry g = geometry_of(64, 2, 96, 2);
  g.x_bytes_per_token_layer = 8;
  EXPECT_EQ(g.dead_blocks(191), 0u) << "rows may begin at 128, and see 33";
  EXPECT_EQ(g.dead_blocks(192), 1u);
}

TEST(Windows, BlocksWithinAreTheInverseOfTheMostCells) {
  CacheGeometry g = geometry_of(16, 3, 40, 3);
  g.window_chunk = 32;  // six blocks of two groups
  EXPECT_EQ(g.blocks_within(17), 5u);
  EXPECT_EQ(g.blocks_within(18), 6u);
  EXPECT_EQ(g.blocks_within(19), 7u);
  for (uint32_t blocks = 1; blocks < 40; ++blocks) EXPECT_EQ(g.blocks_within(g.most_cells(blocks)), blocks);
  g.set_windows(std::vector<uint32_t>{40, 40, 40});
  EXPECT_EQ(g.blocks_within(17), 5u);
  EXPECT_GT(g.blocks_within(18), 1'000'000u) << "18 cells do for any length";
  EXPECT_EQ(geometry_of(16, 3, 0, 3).blocks_within(29), 9u);
}

TEST(Windows, AGroupWithOtherLayersHasNone) {
  CacheGeometry g = {16, 6, 2, 8};
  g.set_windows(std::vector<uint32_t>{32, 32, 32, 0, 48, 48});
  EXPECT_EQ(g.windowed, LayerSet::one(0) | LayerSet::one(2));
  EXPECT_EQ(g.window, 48u);
  g.set_windows(std::vector<uint32_t>{32, 0, 32, 0, 0, 48});
  EXPECT_TRUE(g.windowed.empty());
  EXPECT_EQ(g.window, 0u);
}

// Blocks of 16 tokens, a window of 40 in groups 0 and 1, none in group 2.
class WindowsTest : public GroupsFixture {
 protected:
  static CacheOptions options() {
    CacheOptions o;
    o.geometry = geometry_of(16, 3, 40, 3);
    o.geometry.window_chunk = 32;
    o.device_bytes = o.geometry.kv_block_bytes() * 24;
    o.host_bytes = o.geometry.kv_block_bytes() * 24;
    o.disk_bytes = o.geometry.cell_stride(Form::kKv, Tier::kDisk) * 3 * 24;
    return o;
  }
  WindowsTest() : GroupsFixture(options()) {}

  void save_all() {
    for (std::vector<Transfer> out = cache_.save_idle({}); !out.empty(); out = cache_.save_idle({})) {
      check();
      for (const Transfer& t : out) cache_.transfer_ended(t.id, {});
    }
    check();
  }
  // Evicts what is idle on the device.
  void push_out(uint64_t step) {
    const SeqId other{90 + step};
    cache_.add_sequence(other, std::vector<Token>(400, static_cast<Token>(step)), "", /*adopts=*/false);
    submit(step, other, static_cast<uint32_t>(free_cells()) / 3 * 16);
    cache_.step_ended(StepId{step}, /*ok=*/false, {});
    cache_.remove_sequence(other);
    check();
  }
  uint32_t promised(SeqId seq) { return cache_.promised_cells(seq)[index_of(Tier::kDevice)]; }
  int64_t free_cells() { return cache_.budget(Tier::kDevice).available_cells(); }
};

TEST_F(WindowsTest, DeadCellsAreGivenUpWhenTheStepHasEnded) {
  cache_.add_sequence(kA, tokens(200), "");
  submit(1, kA, 96);
  EXPECT_EQ(held(kA), 18u) << "the rows of the step read them all";
  end(1);
  // (96 - 39) / 16 = 3 blocks are dead in two groups.
  const SequenceCells s = cache_.summary(kA);
  EXPECT_EQ(s.dead_blocks, 3u);
  EXPECT_EQ(held(kA), 12u);
  EXPECT_EQ(s.live_cells(cache_.geometry()), 12u);
  EXPECT_EQ(s.blocks, 6u);
  EXPECT_EQ(s.resident_blocks, 6u);
  EXPECT_EQ(s.device_groups, LayerSet::all(3));
  EXPECT_EQ(s.dropped_cells, 0u);
  EXPECT_EQ(free_cells(), 72 - 12) << "what no sequence holds may be found, and counts as free";
  const auto table = cache_.table(kA);
  for (uint32_t b = 0; b < 6; ++b) {
    for (uint32_t g = 0; g < 3; ++g) EXPECT_EQ((*table)[3 * b + g].present(), b >= 3 || g == 2) << b << g;
  }
}

TEST_F(WindowsTest, WhatAStepInFlightReadsIsKept) {
  cache_.add_sequence(kA, tokens(200), "");
  submit(1, kA, 64);
  submit(2, kA, 96);
  end(1);
  EXPECT_EQ(cache_.summary(kA).dead_blocks, 1u) << "the row at 64 sees 25";
  end(2);
  EXPECT_EQ(cache_.summary(kA).dead_blocks, 3u);
}

TEST_F(WindowsTest, ADeferredRowFindsItsWindow) {
  cache_.add_sequence(kA, tokens(200), "");
  submit(1, kA, 64);
  end(1);
  submit(2, kA, 96);
  end(2, {kA});
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 64u);
  EXPECT_EQ(cache_.summary(kA).dead_blocks, 1u);
  EXPECT_EQ(held(kA), 12u - 2u);
}

TEST_F(WindowsTest, OthersKeepWhatOneGivesUp) {
  cache_.add_sequence(kA, tokens(200), "");
  submit(1, kA, 40);
  end(1);
  cache_.add_sequence(kB, tokens(200), "");
  cache_.adopt(kB, 32);
  submit(2, kA, 96);
  end(2);
  EXPECT_EQ(cache_.summary(kA).dead_blocks, 3u);
  EXPECT_EQ(held(kB), 6u);
  EXPECT_EQ(cache_.summary(kB).dead_blocks, 0u);
}

TEST_F(WindowsTest, WhereTheWindowOfADroppedCellIsDeadAllIsComputedAgain) {
  cache_.add_sequence(kA, tokens(200), "");
  submit(1, kA, 96);
  end(1);
  cache_.drop({Verb::kDrop, kA, {64, 80}, LayerSet::one(2), Form::kKv, Tier::kDevice, Trigger::kNow});
  check();
  const SequenceCells s = cache_.summary(kA);
  EXPECT_EQ(s.dropped_cells, 1u);
  EXPECT_EQ(s.dropped, (Interval{0, 80})) << "the row at 64 sees 25: block 1, which is dead";
  EXPECT_EQ(s.dropped_first_group, 2u);
}

TEST_F(WindowsTest, CellsThatBecomeFreeArePromisedToTheRestOfThePrompt) {
  cache_.add_sequence(kA, tokens(200), "");
  // 13 blocks; of windowed groups at most (40 + 32) / 16, rounded up, and one.
  EXPECT_EQ(cache_.geometry().window_blocks(), 6u);
  EXPECT_EQ(cache_.geometry().most_cells(13), 13u + 2 * 6u);
  cache_.promise({.owner = kA, .cells = 25});
  uint64_t step = 0;
  for (uint32_t ready = 32; ready <= 192; ready += 32) {
    submit(++step, kA, ready);
    end(step);
    EXPECT_EQ(held(kA) + promised(kA), 25u) << ready;
  }
  submit(++step, kA, 200);
  end(step);
  // (200 - 39) / 16 = 10 are dead: three blocks of all groups and ten of one.
  EXPECT_EQ(held(kA), 19u);
  EXPECT_LE(held(kA) + promised(kA), 25u);
}

TEST_F(WindowsTest, APrefixNeedsOfWindowsOnlyWhatTheRowBehindItSees) {
  cache_.add_sequence(kA, tokens(200), "");
  submit(1, kA, 192);
  end(1);
  cache_.add_sequence(kB, tokens(200), "");
  // Twelve blocks: (192 - 39) / 16 = 9 are dead behind them, so of two groups three are adopted.
  const SequenceCells found = cache_.summary(kB);
  EXPECT_EQ(found.cached_tokens, 192u);
  EXPECT_EQ(found.cached_resident_cells, 12u + 2 * 3u);
  // What A gave up is evicted for others: 72 - 18 cells.
  cache_.add_sequence(SeqId{3}, std::vector<Token>(400, 5), "");
  submit(2, SeqId{3}, 18 * 16);
  EXPECT_EQ(cache_.summary(kB).cached_tokens, 192u);
  cache_.adopt(kB, 192);
  check();
  const SequenceCells adopted = cache_.summary(kB);
  EXPECT_EQ(adopted.dead_blocks, 9u);
  EXPECT_EQ(adopted.kv_cells(Tier::kDevice), 18u);
  EXPECT_EQ(adopted.dropped_cells, 0u);
  end(2);
}

TEST_F(WindowsTest, APrefixEndsWhereAWindowIsWhole) {
  cache_.add_sequence(kA, tokens(200), "");
  submit(1, kA, 192);
  end(1);
  cache_.add_sequence(SeqId{3}, std::vector<Token>(400, 5), "");
  submit(2, SeqId{3}, 18 * 16);
  end(2);
  // Of this one the windowed cells of blocks 0 to 8 have been evicted: it goes on at 192, or not at all.
  std::vector<Token> other = tokens(200);
  other[180] = 7;
  cache_.add_sequence(kB, other, "");
  EXPECT_EQ(cache_.summary(kB).cached_tokens, 0u);
  cache_.remove_sequence(kB);
  // Where it is computed again, that one is found.
  cache_.remove_sequence(SeqId{3});
  cache_.add_sequence(kB, other, "");
  submit(3, kB, 96);
  end(3);
  cache_.add_sequence(SeqId{4}, other, "");
  EXPECT_EQ(cache_.summary(SeqId{4}).cached_tokens, 96u);
}

// Its row at 72 sees 33: blocks 0 and 1 are dead. Where block 4 does not count any more, rows begin at 64 and
// see 25, which is in block 1.
TEST_F(WindowsTest, WhereTheLastBlockDoesNotCountItsWindowMayBeDead) {
  cache_.add_sequence(kA, tokens(200), "");
  submit(1, kA, 72);
  end(1);
  EXPECT_EQ(cache_.summary(kA).dead_blocks, 2u);
  submit(2, kA, 100);
  cache_.drop({Verb::kDrop, kA, {64, 80}, LayerSet::one(2), Form::kKv, Tier::kDevice, Trigger::kNow});
  end(2, {kA});
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 0u);
}

TEST_F(WindowsTest, CellsOfASettledClaimComeBackAsWell) {
  cache_.add_sequence(kA, tokens(200), "");
  cache_.add_sequence(kB, std::vector<Token>(100, 5), "");
  cache_.promise({.owner = kA, .cells = 20});
  cache_.promise({.owner = kB, .cells = 5});
  cache_.promise({.owner = kA, .cells = 5, .kind = Promise::Kind::kRelease, .from = kB});
  cache_.remove_sequence(kB);
  EXPECT_EQ(cache_.settle_claims(), std::vector<SeqId>{kA});
  uint64_t step = 0;
  for (uint32_t ready = 32; ready <= 192; ready += 32) {
    submit(++step, kA, ready);
    end(step);
    EXPECT_EQ(held(kA) + promised(kA), 25u) << ready;
  }
}

TEST_F(WindowsTest, LentCellsDoNotComeBackToTheirHost) {
  cache_.add_sequence(kA, tokens(200), "");
  cache_.add_sequence(kB, std::vector<Token>(100, 5), "");
  cache_.promise({.owner = kA, .cells = 25});
  cache_.promise({.owner = kB, .cells = 5, .kind = Promise::Kind::kLoan, .from = kA, .due_tokens = 150});
  uint64_t step = 0;
  for (uint32_t ready = 32; ready <= 128; ready += 32) {
    submit(++step, kA, ready);
    end(step);
    EXPECT_EQ(held(kA) + promised(kA), 20u) << ready;
  }
  EXPECT_EQ(promised(kB), 5u);
}

// B keeps the blocks 0 to 3 that A gives up: for them A is promised others.
TEST_F(WindowsTest, ForCellsThatOthersKeepOthersArePromised) {
  cache_.add_sequence(kA, tokens(200), "");
  cache_.promise({.owner = kA, .cells = 25});
  submit(1, kA, 64);
  end(1);
  cache_.add_sequence(kB, tokens(200), "");
  cache_.adopt(kB, 48);
  const int64_t before = free_cells();
  submit(2, kA, 96);
  end(2);
  EXPECT_EQ(cache_.summary(kA).dead_blocks, 3u);
  EXPECT_EQ(held(kA) + promised(kA), 25u);
  // Since then A gave up the blocks 1 and 2 of two groups, which B holds.
  EXPECT_EQ(free_cells(), before - 4);
}

TEST_F(WindowsTest, WhatIsNotAvailableIsOwedUntilItIs) {
  cache_.add_sequence(kA, tokens(200), "");
  cache_.promise({.owner = kA, .cells = 25});
  submit(1, kA, 64);
  end(1);
  cache_.add_sequence(kB, tokens(200), "");
  cache_.adopt(kB, 48);
  cache_.promise({.cells = static_cast<uint32_t>(free_cells()), .kind = Promise::Kind::kReserve});
  submit(2, kA, 96);
  end(2);
  EXPECT_EQ(held(kA) + promised(kA), 21u);
  cache_.promise({.cells = 0, .kind = Promise::Kind::kReserve});
  submit(3, kA, 97);
  end(3);
  EXPECT_EQ(held(kA) + promised(kA), 25u);
}

// Of a prefix of 12 blocks B adopts 12 cells and those of a window of three blocks in two groups.
TEST_F(WindowsTest, AWindowThatOthersUseAddsNothingToWhatComesBack) {
  cache_.add_sequence(kA, tokens(400), "");
  submit(1, kA, 192);
  end(1);
  cache_.add_sequence(kB, tokens(400), "");
  EXPECT_EQ(cache_.summary(kB).cached_resident_cells, 18u);
  EXPECT_EQ(cache_.summary(kB).cached_shared_cells, 6u);
  cache_.adopt(kB, 192);
  cache_.promise({.owner = kB, .cells = 25 + 12 - 12});  // of 25 blocks 25 + 2 x 6
  uint64_t step = 1;
  for (uint32_t ready = 224; ready <= 384; ready += 32) {
    submit(++step, kB, ready);
    end(step);
  }
  EXPECT_EQ(held(kB) + promised(kB), 25u + 12u);
}

TEST_F(WindowsTest, AWindowThatNoneUsesComesBackWithTheRest) {
  cache_.add_sequence(kA, tokens(400), "");
  submit(1, kA, 192);
  end(1);
  cache_.remove_sequence(kA);
  cache_.add_sequence(kB, tokens(400), "");
  EXPECT_EQ(cache_.summary(kB).cached_shared_cells, 0u);
  cache_.adopt(kB, 192);
  cache_.promise({.owner = kB, .cells = 25 + 12 - 18});
  uint64_t step = 1;
  for (uint32_t ready = 224; ready <= 384; ready += 32) {
    submit(++step, kB, ready);
    end(step);
    EXPECT_EQ(held(kB) + promised(kB), 25u + 12u) << ready;
  }
}

// A's blocks lie on the host, whole. B computed the same, and has given up the windowed cells of the first
// three blocks on the device.
TEST_F(WindowsTest, ABlockThatLacksCellsTakesNoPlaceOfAWholeOne) {
  cache_.add_sequence(kA, tokens(200), "");
  submit(1, kA, 48);
  end(1);
  const CopyChange away{Verb::kAdd, kA, {0, 48}, LayerSet::all(3), Form::kKv, Tier::kHost, Trigger::kNow};
  for (const Transfer& t : cache_.add_copies(away, /*stops=*/true).transfers) cache_.transfer_ended(t.id, {});
  cache_.drop_form(kA, Form::kKv, Tier::kDevice);
  cache_.add_sequence(kB, tokens(200), "", /*adopts=*/false);
  submit(2, kB, 96);
  end(2);
  cache_.remove_sequence(kA);
  // It evicts what is idle on the device.
  cache_.add_sequence(SeqId{4}, std::vector<Token>(400, 5), "");
  submit(3, SeqId{4}, static_cast<uint32_t>(free_cells()) / 3 * 16);
  const CopyChange copy{Verb::kAdd, kB, {0, 48}, LayerSet::one(2), Form::kKv, Tier::kHost, Trigger::kNow};
  for (const Transfer& t : cache_.add_copies(copy, /*stops=*/false).transfers)
    cache_.transfer_ended(t.id, {});
  // Counts the blocks of B again.
  cache_.drop_form(kB, Form::kX, Tier::kHost);
  check();
  cache_.add_sequence(SeqId{3}, tokens(60), "");
  EXPECT_EQ(cache_.summary(SeqId{3}).cached_tokens, 48u);
}

// Of A's twelve blocks the windowed cells of nine are gone when they are saved.
TEST_F(WindowsTest, ABlockThatLacksCellsOutlivesItsSequenceAndTheProcess) {
  cache_.add_sequence(kA, tokens(200), "");
  submit(1, kA, 192);
  end(1);
  push_out(2);
  cache_.remove_sequence(kA);
  save_all();
  push_out(3);
  cache_.add_sequence(kB, tokens(200), "");
  const SequenceCells found = cache_.summary(kB);
  EXPECT_EQ(found.cached_tokens, 192u);
  EXPECT_EQ(found.cached_resident_cells, 0u);
  EXPECT_EQ(found.cached_idle[index_of(Form::kKv)][index_of(Tier::kHost)], 12u + 2 * 3u);
  std::vector<Token> other = tokens(200);
  other[180] = 7;
  KvCache next(options());
  EXPECT_EQ(next.restore(cache_.saved_cells()), 12u);
  next.add_sequence(kA, tokens(200), "");
  EXPECT_EQ(next.summary(kA).cached_tokens, 192u);
  EXPECT_EQ(next.summary(kA).cached_idle[index_of(Form::kKv)][index_of(Tier::kDisk)], 12u + 2 * 3u);
  next.add_sequence(kB, other, "");
  EXPECT_EQ(next.summary(kB).cached_tokens, 0u) << "the window before 176 is gone";
  next.adopt(kA, 192);
  EXPECT_EQ(next.check_integrity().message(), "");
}

// Where its block is computed again, the cells that a saved one lacks are saved, too.
TEST_F(WindowsTest, WhatASavedBlockLacksIsSavedWhenItIsThereAgain) {
  cache_.add_sequence(kA, tokens(200), "");
  submit(1, kA, 192);
  end(1);
  push_out(2);
  cache_.remove_sequence(kA);
  save_all();
  push_out(3);
  cache_.add_sequence(kB, tokens(200), "", /*adopts=*/false);
  submit(4, kB, 192);
  end(4);
  cache_.remove_sequence(kB);
  save_all();
  push_out(5);
  std::vector<Token> other = tokens(200);
  other[180] = 7;
  cache_.add_sequence(SeqId{3}, other, "");
  const SequenceCells found = cache_.summary(SeqId{3});
  EXPECT_EQ(found.cached_tokens, 176u);
  EXPECT_EQ(found.cached_resident_cells, 0u);
  // (176 - 39) / 16 = 8 of eleven are dead.
  EXPECT_EQ(found.cached_idle[index_of(Form::kKv)][index_of(Tier::kHost)], 11u + 2 * 3u);
}

// Of a prompt that was computed in chunks of 512 tokens: the cells that it holds, and those without windows.
std::pair<uint32_t, uint32_t> held_of(const CacheGeometry& geometry, uint32_t length) {
  CacheOptions o;
  o.geometry = geometry;
  o.device_bytes = geometry.kv_block_bytes() * (geometry.blocks_for(length) + 1);
  o.prefix_caching = false;
  KvCache cache(o);
  cache.add_sequence(kA, tokens(length), "");
  for (uint32_t ready = 0, step = 1; ready < length; ready += 512, ++step) {
    StepSlice slice;
    slice.seq = kA;
    slice.tokens = {ready, std::min(length, ready + 512)};
    cache.extend(kA, slice.tokens.end, {LayerSet::all(geometry.groups()), {}}, StepId{step});
    cache.step_submitted(StepId{step}, {&slice, 1});
    cache.step_ended(StepId{step}, true, {});
  }
  EXPECT_EQ(cache.check_integrity().message(), "");
  return {cache.map().used_cells(Tier::kDevice), geometry.blocks_for(length) * geometry.groups()};
}

TEST(Windows, ModelsHoldTheShareThatTheArithmeticSays) {
  // Gemma 3 27B: 62 layers, every sixth of them full, a window of 1,024.
  const CacheGeometry gemma = geometry_of(64, 62, 1024, 6);
  EXPECT_EQ(gemma.windowed.count(), 52u);
  // Of 32,768 tokens (32,768 - 1,023) / 64 = 496 blocks are dead, and 16 live; of 8,192, 112 and 16.
  EXPECT_EQ(held_of(gemma, 32768), std::pair(10 * 512u + 52 * 16u, 62 * 512u));  // 18.8 %
  EXPECT_EQ(held_of(gemma, 8192), std::pair(10 * 128u + 52 * 16u, 62 * 128u));   // 26.6 %
  // gpt-oss-20b: 24 layers, every other one full, a window of 128.
  const CacheGeometry oss = geometry_of(64, 24, 128, 2);
  EXPECT_EQ(held_of(oss, 32768), std::pair(12 * 512u + 12 * 2u, 24 * 512u));  // 50.2 %
  EXPECT_EQ(held_of(oss, 8192), std::pair(12 * 128u + 12 * 2u, 24 * 128u));   // 50.8 %
}

TEST(Windows, TheLongestRequestNeedsOnlyItsWindowInThem) {
  // Three groups, two with a window: of 20 blocks 20 + 2 x 6 cells.
  CellCapacity c = {.groups = 3, .device_cells = 32, .windowed_groups = 2, .window_blocks = 6};
  EXPECT_EQ(KvPlacement::longest(c), 20u);
  EXPECT_TRUE(KvPlacement::of(20, c).fits);
  EXPECT_FALSE(KvPlacement::of(20, c).streams);
  EXPECT_FALSE(KvPlacement::of(21, c).fits);
  c.windowed_groups = 3;
  EXPECT_EQ(KvPlacement::longest(c), KvPlacement::kMostBlocks) << "18 cells do for any length";
  c.device_cells = 17;
  EXPECT_EQ(KvPlacement::longest(c), 5u);
}

}  // namespace
}  // namespace kvasir
