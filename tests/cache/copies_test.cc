// Copies on the move, one rule at a time. Blocks have 16 tokens, and cells in two layer groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cache/kv_cache.h"

namespace kvasir {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr SeqId kA{1}, kB{2}, kC{3};
constexpr size_t kDevice = index_of(Tier::kDevice);
constexpr size_t kHost = index_of(Tier::kHost);

std::vector<Token> tokens(uint32_t n, Token first = 0) {
  std::vector<Token> out(n);
  std::iota(out.begin(), out.end(), first);
  return out;
}

LayerSet group(uint32_t g) {
  LayerSet set;
  set.add(g);
  return set;
}

// Eight blocks on the device and eight on the host.
class CopiesTest : public testing::Test {
 protected:
  CopiesTest() : cache_(options()) {}
  ~CopiesTest() override { check(); }

  static CacheOptions options() {
    CacheOptions o;
    o.geometry = {16, 4, 2, 8};
    o.device_bytes = o.geometry.kv_block_bytes() * 8;
    o.host_bytes = o.geometry.kv_block_bytes() * 8;
    o.stage_bytes = o.geometry.layer_plane_bytes() * 2 * 8;
    return o;
  }
  void check() { EXPECT_EQ(cache_.check_integrity().message(), ""); }

  void submit(uint64_t step, SeqId seq, uint32_t end, const LayerSet& keep = LayerSet::all(2)) {
    StepSlice slice;
    slice.seq = seq;
    slice.tokens = {cache_.summary(seq).ready_tokens, end};
    cache_.extend(seq, end, keep, StepId{step});
    cache_.step_submitted(StepId{step}, {&slice, 1});
  }
  KvCache::StepOutcome end(uint64_t step, std::vector<SeqId> deferred = {}) {
    KvCache::StepOutcome outcome = cache_.step_ended(StepId{step}, true, deferred);
    check();
    return outcome;
  }
  // A sequence of so many tokens, all computed by a step of the past.
  void computed(SeqId seq, uint32_t n, Token first = 0) {
    cache_.add_sequence(seq, tokens(n, first), "");
    submit(++step_, seq, n);
    end(step_);
  }

  std::vector<Transfer> add(SeqId seq, Interval range, Tier tier, bool tail = false,
                            const LayerSet& layers = LayerSet::all(2), Trigger trigger = Trigger::kNow) {
    std::vector<Transfer> transfers =
        cache_.add_copies({Verb::kAdd, seq, range, layers, Form::kKv, tier, trigger}, tail);
    check();
    return transfers;
  }
  void leave(SeqId seq, Interval range, Tier tier, const LayerSet& layers = LayerSet::all(2)) {
    cache_.leave({Verb::kDrop, seq, range, layers, Form::kKv, tier, Trigger::kWhenReady});
    check();
  }
  void finish(const Transfer& transfer, bool ok = true) {
    cache_.transfer_ended(transfer.id, ok);
    check();
  }
  void finish(const std::vector<Transfer>& transfers, bool ok = true) {
    for (const Transfer& t : transfers) finish(t, ok);
  }
  // All of it is on the host, and nothing on the device.
  void offload(SeqId seq) {
    const Interval all = {0, cache_.summary(seq).ready_tokens};
    finish(add(seq, all, Tier::kHost, /*tail=*/true));
    leave(seq, all, Tier::kDevice);
  }

  uint32_t cells(SeqId seq, size_t tier) const { return cache_.summary(seq).cells[tier]; }
  int64_t available(Tier tier) const { return cache_.budget(tier).available_cells(); }
  int64_t coming() const { return cache_.budget(Tier::kDevice).coming_cells(); }

  KvCache cache_;
  uint64_t step_ = 100;
};

// ---------------------------------------------------------------- adding

TEST_F(CopiesTest, OneTransferForEachLayerGroupMovesRunsOfFullBlocks) {
  computed(kA, 40);
  const std::vector<Transfer> transfers = add(kA, {0, 40}, Tier::kHost);
  ASSERT_EQ(transfers.size(), 2u);
  const BlockTable& frames = *cache_.table(kA);
  uint64_t next = transfers[0].segments[0].to.offset;
  for (uint32_t g = 0; g < 2; ++g) {
    ASSERT_EQ(transfers[g].segments.size(), 4u) << "K and V of two full blocks";
    EXPECT_EQ(transfers[g].bytes(), 4u * 256);
    EXPECT_EQ(transfers[g].priority, TransferPriority::kOffload);
    EXPECT_THAT(transfers[g].after, IsEmpty());
    for (uint32_t i = 0; i < 4; ++i) {
      const Segment& s = transfers[g].segments[i];
      const KvPlanes& planes = frames[(i / 2) * 2 + g];
      EXPECT_EQ(s.from, (MemoryAddress{i % 2 == 0 ? planes.k : planes.v, Tier::kDevice}));
      EXPECT_EQ(s.to.tier, Tier::kHost);
      if (g == 0) {
        EXPECT_EQ(s.to.offset, next) << "an extent grows with the tokens";
        next += 256;
      }
    }
  }
  KvCache::Summary s = cache_.summary(kA);
  EXPECT_EQ(s.cells[kHost], 4u);
  EXPECT_EQ(s.cells[kDevice], 6u);
  EXPECT_EQ(s.own_cells[kHost], 0u) << "transfers use them";
  EXPECT_EQ(s.transfers, 2u);
  EXPECT_EQ(cache_.transfers_in_flight(), 2u);
  EXPECT_EQ(available(Tier::kHost), 12);
  EXPECT_THAT(add(kA, {0, 40}, Tier::kHost), IsEmpty()) << "they are on their way";

  finish(transfers);
  s = cache_.summary(kA);
  EXPECT_EQ(s.own_cells[kHost], 4u);
  EXPECT_EQ(s.own_cells[kDevice], 6u);
  EXPECT_EQ(s.transfers, 0u);
  EXPECT_TRUE(s.tail_resident);
  EXPECT_THAT(add(kA, {0, 40}, Tier::kHost), IsEmpty()) << "they are there";
}

TEST_F(CopiesTest, ARectangleNamesSomeBlocksAndSomeGroups) {
  computed(kA, 60);
  const std::vector<Transfer> transfers =
      add(kA, {16, 32}, Tier::kHost, false, group(1), Trigger::kBackground);
  ASSERT_EQ(transfers.size(), 1u);
  ASSERT_EQ(transfers[0].segments.size(), 2u);
  EXPECT_EQ(transfers[0].segments[0].from.offset, (*cache_.table(kA))[1 * 2 + 1].k);
  EXPECT_EQ(transfers[0].priority, TransferPriority::kOffload);
  EXPECT_EQ(cells(kA, kHost), 1u);
  finish(transfers);
}

TEST_F(CopiesTest, CopiesDrawOnThePromise) {
  computed(kA, 40);
  cache_.promise(kA, Tier::kHost, 6);
  EXPECT_EQ(available(Tier::kHost), 10);
  const std::vector<Transfer> transfers = add(kA, {0, 32}, Tier::kHost);
  EXPECT_EQ(cache_.summary(kA).promised_cells[kHost], 2u);
  EXPECT_EQ(available(Tier::kHost), 10);
  finish(transfers);
}

// ---------------------------------------------------------------- leaving

TEST_F(CopiesTest, WhatIsCleanIsEvictedForNothing) {
  computed(kA, 40);
  finish(add(kA, {0, 32}, Tier::kHost));
  EXPECT_EQ(available(Tier::kDevice), 10);
  leave(kA, {0, 32}, Tier::kDevice);
  EXPECT_EQ(available(Tier::kDevice), 14) << "at once";
  const KvCache::Summary s = cache_.summary(kA);
  EXPECT_EQ(s.cells[kDevice], 2u);
  EXPECT_EQ(s.leaving_cells, 0u);
  EXPECT_EQ(s.resident_blocks, 1u);
  EXPECT_TRUE(s.device_groups.empty());
  EXPECT_TRUE(s.tail_resident);
  EXPECT_EQ(s.ready_tokens, 40u);
  const BlockTable& frames = *cache_.table(kA);
  EXPECT_FALSE(frames[0].present());
  EXPECT_TRUE(frames[4].present());
}

TEST_F(CopiesTest, ItLeavesGroupByGroupAsTheOtherCopyIsReady) {
  computed(kA, 40);
  const std::vector<Transfer> transfers = add(kA, {0, 32}, Tier::kHost);
  leave(kA, {0, 40}, Tier::kDevice);
  EXPECT_EQ(cache_.summary(kA).leaving_cells, 4u) << "of the last block there is no other copy";
  EXPECT_EQ(coming(), 4);
  EXPECT_EQ(available(Tier::kDevice), 10);
  finish(transfers[1]);
  EXPECT_EQ(cache_.summary(kA).leaving_cells, 2u);
  EXPECT_EQ(cells(kA, kDevice), 4u);
  EXPECT_EQ(available(Tier::kDevice), 12);
  EXPECT_EQ(cache_.summary(kA).device_groups, group(0));
  finish(transfers[0]);
  EXPECT_EQ(cells(kA, kDevice), 2u);
  EXPECT_EQ(available(Tier::kDevice), 14);
  EXPECT_EQ(coming(), 0);
}

TEST_F(CopiesTest, WhatLeavesIsStillReadByTheStepsInFlight) {
  computed(kA, 40);
  finish(add(kA, {0, 32}, Tier::kHost));
  cache_.append_token(kA, 7);
  submit(1, kA, 41);
  const auto table = cache_.table(kA);
  leave(kA, {0, 32}, Tier::kDevice);
  EXPECT_EQ(available(Tier::kDevice), 10);
  EXPECT_EQ(coming(), 4);
  EXPECT_TRUE((*table)[0].present()) << "the step keeps the table that it was given";
  end(1);
  EXPECT_EQ(available(Tier::kDevice), 14);
}

TEST_F(CopiesTest, WhatIsLeavingCanBeHeldBack) {
  computed(kA, 40);
  const std::vector<Transfer> transfers = add(kA, {0, 32}, Tier::kHost);
  leave(kA, {0, 32}, Tier::kDevice);
  EXPECT_THAT(add(kA, {0, 32}, Tier::kDevice), IsEmpty());
  EXPECT_EQ(cache_.summary(kA).leaving_cells, 0u);
  finish(transfers);
  EXPECT_EQ(cells(kA, kDevice), 6u);
  EXPECT_EQ(cells(kA, kHost), 4u);
}

TEST_F(CopiesTest, TheHostsCopyIsGivenUpWhereTheDeviceHasOne) {
  computed(kA, 40);
  finish(add(kA, {0, 32}, Tier::kHost));
  leave(kA, {0, 16}, Tier::kDevice);
  leave(kA, {0, 40}, Tier::kHost);
  EXPECT_EQ(cells(kA, kHost), 2u) << "the first block is nowhere else";
  EXPECT_EQ(available(Tier::kHost), 14);
}

TEST_F(CopiesTest, ASharedBlockStaysForItsOtherOwner) {
  computed(kA, 40);
  cache_.add_sequence(kB, tokens(40), "");
  cache_.adopt(kB, 32);
  EXPECT_EQ(cache_.summary(kB).own_cells[kDevice], 0u);
  finish(add(kA, {0, 32}, Tier::kHost));
  leave(kA, {0, 32}, Tier::kDevice);
  EXPECT_EQ(cells(kA, kDevice), 2u);
  EXPECT_EQ(available(Tier::kDevice), 10) << "B has them still";
  EXPECT_EQ(cache_.summary(kB).own_cells[kDevice], 4u) << "and alone";
  EXPECT_FALSE((*cache_.table(kA))[0].present() && cache_.summary(kA).resident_blocks == 3);
  cache_.add_sequence(kC, tokens(40), "");
  EXPECT_EQ(cache_.summary(kC).cached_tokens, 32u) << "they can be found still";

  // B's copy is one that A can have back for nothing.
  EXPECT_THAT(add(kA, {0, 32}, Tier::kDevice), IsEmpty());
  EXPECT_EQ(cells(kA, kDevice), 6u);
  EXPECT_EQ(available(Tier::kDevice), 10);
  cache_.remove_sequence(kA);
  EXPECT_EQ(available(Tier::kHost), 16);
  EXPECT_EQ(cells(kB, kDevice), 4u);
}

// ---------------------------------------------------------------- tails

TEST_F(CopiesTest, ATailThatHasGrownSinceIsCopiedAgainToTheSamePlace) {
  computed(kA, 40);
  std::vector<Transfer> transfers = add(kA, {0, 40}, Tier::kHost, /*tail=*/true);
  ASSERT_EQ(transfers.size(), 2u);
  EXPECT_EQ(transfers[0].segments.size(), 6u);
  EXPECT_TRUE(cache_.summary(kA).tail_busy) << "its bytes are being read";
  const MemoryAddress place = transfers[0].segments[4].to;
  finish(transfers);
  EXPECT_FALSE(cache_.summary(kA).tail_busy);

  for (Token t = 40; t < 44; ++t) cache_.append_token(kA, t);
  submit(1, kA, 44);
  end(1);
  leave(kA, {0, 44}, Tier::kDevice);
  EXPECT_EQ(cells(kA, kDevice), 2u) << "the host has the last block as it was: not all of it";
  EXPECT_TRUE(cache_.summary(kA).tail_resident);

  transfers = add(kA, {0, 44}, Tier::kHost, /*tail=*/true);
  ASSERT_EQ(transfers.size(), 2u);
  ASSERT_EQ(transfers[0].segments.size(), 2u);
  EXPECT_EQ(transfers[0].segments[0].to, place);
  leave(kA, {0, 44}, Tier::kDevice);
  EXPECT_EQ(cache_.summary(kA).leaving_cells, 2u);
  finish(transfers);
  EXPECT_EQ(cells(kA, kDevice), 0u);
  EXPECT_FALSE(cache_.summary(kA).tail_resident);
  EXPECT_EQ(cells(kA, kHost), 6u);
}

TEST_F(CopiesTest, ABlockThatFillsUpAfterItsTailWasCopiedIsCopiedAgain) {
  computed(kA, 40);
  finish(add(kA, {0, 40}, Tier::kHost, /*tail=*/true));
  for (Token t = 40; t < 50; ++t) cache_.append_token(kA, t);
  submit(1, kA, 50);
  end(1);
  const std::vector<Transfer> transfers = add(kA, {0, 48}, Tier::kHost);
  ASSERT_EQ(transfers.size(), 2u);
  EXPECT_EQ(transfers[1].segments.size(), 2u);
  finish(transfers);
  leave(kA, {0, 48}, Tier::kDevice);
  EXPECT_EQ(cells(kA, kDevice), 2u);
}

TEST_F(CopiesTest, WithoutItsTailASequenceCanComeBackInPart) {
  computed(kA, 40);
  offload(kA);
  EXPECT_EQ(available(Tier::kDevice), 16);
  const std::vector<Transfer> transfers =
      add(kA, {32, 40}, Tier::kDevice, /*tail=*/true, LayerSet::all(2), Trigger::kBeforeLayer);
  ASSERT_EQ(transfers.size(), 2u);
  EXPECT_EQ(transfers[0].priority, TransferPriority::kNeededNow);
  KvCache::Summary s = cache_.summary(kA);
  EXPECT_TRUE(s.tail_resident);
  EXPECT_FALSE(s.tail_busy) << "it is being filled, which rows wait for";
  EXPECT_EQ(cache_.holdings(kA).filling, 2u);
  finish(transfers);
  s = cache_.summary(kA);
  EXPECT_EQ(s.resident_blocks, 1u);
  EXPECT_EQ(s.cells[kHost], 6u) << "the host keeps its copies until they are given up";
  EXPECT_EQ(cache_.holdings(kA).filling, 0u);
}

// ---------------------------------------------------------------- failures

TEST_F(CopiesTest, AFailedCopyLeavesTheOtherWhereItIs) {
  computed(kA, 40);
  const std::vector<Transfer> out = add(kA, {0, 32}, Tier::kHost);
  leave(kA, {0, 32}, Tier::kDevice);
  finish(out[0], /*ok=*/false);
  finish(out[1]);
  KvCache::Summary s = cache_.summary(kA);
  EXPECT_EQ(s.leaving_cells, 0u);
  EXPECT_EQ(s.cells[kHost], 2u);
  EXPECT_EQ(s.cells[kDevice], 4u) << "a group of two full blocks, and the last block";
  EXPECT_EQ(s.ready_tokens, 40u);
  EXPECT_EQ(available(Tier::kHost), 14);

  leave(kA, {0, 32}, Tier::kDevice);
  const std::vector<Transfer> back = add(kA, {0, 32}, Tier::kDevice, true);
  ASSERT_EQ(back.size(), 1u);
  finish(back, /*ok=*/false);
  s = cache_.summary(kA);
  EXPECT_EQ(s.ready_tokens, 40u) << "the host has it still";
  EXPECT_EQ(s.cells[kDevice], 4u);
  EXPECT_EQ(available(Tier::kDevice), 12);
}

TEST_F(CopiesTest, ALostCellCutsTheSequenceBack) {
  // Three full blocks are written to the host as the step goes, and nothing of them is on the device.
  cache_.add_sequence(kA, tokens(50), "");
  submit(1, kA, 50, /*keep=*/{});
  const auto written = cache_.write_through(
      {Verb::kAdd, kA, {0, 48}, LayerSet::all(2), Form::kKv, Tier::kHost, Trigger::kAfterLayerWrites});
  ASSERT_EQ(written.size(), 6u);
  EXPECT_TRUE(written[0].from_ring);
  const auto fills = [&](uint32_t block, uint32_t g) {
    return cache_.begin_transfer(kA, {{cache_.blocks_of(kA)[block], Tier::kHost, g, true}}, false);
  };
  std::vector<TransferId> ids;
  for (const auto& w : written) ids.push_back(fills(w.block, w.group));
  check();
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool second = written[i].block == 1 && written[i].group == 1;
    cache_.transfer_ended(ids[i], !second);
    check();
  }
  KvCache::Summary s = cache_.summary(kA);
  EXPECT_EQ(s.ready_tokens, 16u) << "what was computed on it has to be computed again as well";
  EXPECT_EQ(s.blocks, 1u);
  EXPECT_EQ(s.cells[kHost], 2u);
  EXPECT_THAT(end(1).void_rows, ElementsAre(kA));
  EXPECT_EQ(available(Tier::kHost), 14);
  EXPECT_EQ(available(Tier::kDevice), 16);
}

TEST_F(CopiesTest, ALostCellOfASharedHistoryIsLostForThoseWhoHaveNoOther) {
  computed(kA, 40);
  cache_.add_sequence(kB, tokens(40), "");
  cache_.adopt(kB, 32);
  const std::vector<Transfer> out = add(kA, {0, 32}, Tier::kHost);
  leave(kA, {0, 32}, Tier::kDevice);
  finish(out, /*ok=*/false);
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 40u);
  EXPECT_EQ(cells(kA, kDevice), 6u);
  EXPECT_EQ(cells(kB, kDevice), 4u);
}

TEST_F(CopiesTest, WhatIsComputedInFlightOnALostCellIsVoid) {
  cache_.add_sequence(kA, tokens(60), "");
  submit(1, kA, 32, /*keep=*/{});
  const auto written = cache_.write_through(
      {Verb::kAdd, kA, {0, 32}, LayerSet::all(2), Form::kKv, Tier::kHost, Trigger::kAfterLayerWrites});
  std::vector<TransferId> ids;
  for (const auto& w : written) {
    ids.push_back(
        cache_.begin_transfer(kA, {{cache_.blocks_of(kA)[w.block], Tier::kHost, w.group, true}}, false));
  }
  submit(2, kA, 60);
  EXPECT_THAT(end(1).void_rows, IsEmpty());
  cache_.transfer_ended(ids[0], false);
  for (size_t i = 1; i < ids.size(); ++i) cache_.transfer_ended(ids[i], true);
  check();
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 0u);
  submit(3, kA, 60);
  EXPECT_THAT(end(2).void_rows, ElementsAre(kA));
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 60u);
  EXPECT_THAT(end(3).void_rows, IsEmpty());
}

// ---------------------------------------------------------------- what is in flight

TEST_F(CopiesTest, BytesThatAStepStillWritesAreSentWhenItHasEnded) {
  cache_.add_sequence(kA, tokens(60), "");
  submit(1, kA, 32);
  submit(2, kA, 48);
  EXPECT_THAT(add(kA, {32, 48}, Tier::kHost), IsEmpty());
  EXPECT_THAT(add(kA, {0, 32}, Tier::kHost, false, group(1)), IsEmpty());
  EXPECT_EQ(cells(kA, kHost), 4u) << "their places are taken";
  EXPECT_EQ(cache_.transfers_in_flight(), 3u);
  const KvCache::StepOutcome first = end(1);
  ASSERT_EQ(first.transfers.size(), 1u);
  EXPECT_EQ(first.transfers[0].segments.size(), 4u);
  EXPECT_EQ(add(kA, {0, 32}, Tier::kHost, false, group(0)).size(), 1u) << "at rest by now";
  const KvCache::StepOutcome second = end(2);
  EXPECT_EQ(second.transfers.size(), 2u);
  finish(first.transfers);
  finish(second.transfers);
  EXPECT_EQ(cache_.transfers_in_flight(), 1u);
}

TEST_F(CopiesTest, FramesAreNotReusedBeforeTheirTransferHasEnded) {
  computed(kA, 40);
  const std::vector<Transfer> out = add(kA, {0, 40}, Tier::kHost, /*tail=*/true);
  cache_.drop_all(kA);
  check();
  EXPECT_EQ(cells(kA, kHost), 0u);
  EXPECT_EQ(available(Tier::kDevice), 10);
  EXPECT_EQ(coming(), 6);
  EXPECT_EQ(available(Tier::kHost), 10);
  finish(out[0]);
  EXPECT_EQ(available(Tier::kHost), 10) << "a block is nobody's as a whole or not at all";
  finish(out[1]);
  EXPECT_EQ(available(Tier::kHost), 16);
  EXPECT_EQ(available(Tier::kDevice), 16);
  EXPECT_EQ(cache_.map().idle_blocks(), 2u) << "full ones can be found";
}

TEST_F(CopiesTest, NobodyWaitsForTransfersOfASequenceThatHasGone) {
  computed(kA, 40);
  computed(kB, 40, 500);
  const std::vector<Transfer> a = add(kA, {0, 32}, Tier::kHost);
  const std::vector<Transfer> b = add(kB, {0, 32}, Tier::kHost);
  const TransferId firing =
      cache_.begin_transfer(kA, {{cache_.blocks_of(kA)[0], Tier::kDevice, 0, false}}, /*cancellable=*/false);
  cache_.remove_sequence(kA);
  check();
  EXPECT_THAT(cache_.take_cancelled(), UnorderedElementsAre(a[0].id, a[1].id));
  EXPECT_THAT(cache_.take_cancelled(), IsEmpty());
  EXPECT_EQ(available(Tier::kHost), 8) << "until the link says that they have ended";
  finish(a, /*ok=*/false);
  cache_.transfer_ended(firing, true);
  check();
  EXPECT_EQ(available(Tier::kHost), 12);
  finish(b);
}

// ---------------------------------------------------------------- being found

TEST_F(CopiesTest, ABlockIsFoundWhileItIsCompleteOnTheDevice) {
  computed(kA, 40);
  cache_.add_sequence(kB, tokens(40), "");
  EXPECT_EQ(cache_.summary(kB).cached_tokens, 32u);
  finish(add(kA, {0, 32}, Tier::kHost));
  EXPECT_EQ(cache_.summary(kB).cached_tokens, 32u);
  leave(kA, {16, 32}, Tier::kDevice, group(1));
  EXPECT_EQ(cache_.summary(kB).cached_tokens, 16u) << "one cell is enough";
  cache_.take_changed();
  const std::vector<Transfer> back = add(kA, {16, 32}, Tier::kDevice);
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(cache_.summary(kB).cached_tokens, 16u) << "its bytes are on their way";
  finish(back);
  EXPECT_EQ(cache_.summary(kB).cached_tokens, 32u);
  EXPECT_THAT(cache_.take_changed(), testing::Contains(kB));
}

TEST_F(CopiesTest, OfTwoWithTheSameHashTheOneThatIsHereIsFound) {
  computed(kA, 20);
  offload(kA);
  computed(kB, 20);
  cache_.add_sequence(kC, tokens(20), "");
  EXPECT_EQ(cache_.summary(kC).cached_tokens, 16u);
  finish(add(kA, {0, 20}, Tier::kDevice, /*tail=*/true));
  cache_.remove_sequence(kB);
  EXPECT_EQ(cache_.summary(kC).cached_idle_blocks, 1u) << "B's is kept, A's was never published again";
  cache_.remove_sequence(kA);
  check();
  EXPECT_EQ(cache_.map().idle_blocks(), 1u);
}

}  // namespace
}  // namespace kvasir
