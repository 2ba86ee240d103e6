// Cells that peers have lent, in the map of copies, and those that are lent to peers. Blocks have 64 tokens,
// four to a leaf of attention, and cells in two layer groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "cache/sequences/kv_cache.h"

namespace kvasir {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using InClosed = PeersView::Recalled;

constexpr SeqId kFar{1}, kNear{2}, kLatest{3};
constexpr Place kAtHost = {Form::kKv, Tier::kHost};
constexpr uint32_t kQuarter = 64;

CacheOptions borrowing(uint32_t own_cells, uint32_t borrowable) {
  CacheOptions o;
  o.geometry = {kQuarter, 4, 2, 8};
  o.device_bytes = o.geometry.kv_block_bytes() * 24;
  o.host_bytes = o.geometry.kv_cell_bytes() * own_cells;
  o.borrowed_bytes = o.geometry.kv_cell_bytes() * borrowable;
  return o;
}

std::vector<uint32_t> numbers(uint32_t begin, uint32_t end) {
  std::vector<uint32_t> out(end - begin);
  std::iota(out.begin(), out.end(), begin);
  return out;
}

class Borrowed : public testing::Test {
 protected:
  explicit Borrowed(uint32_t own_cells = 0) : cache_(borrowing(own_cells, 40)) {}
  ~Borrowed() override { check(); }

  void check() const { EXPECT_EQ(cache_.check_integrity().message(), ""); }
  void submit(SeqId seq, uint32_t end) {
    StepSlice slice;
    slice.seq = seq;
    slice.tokens = {cache_.summary(seq).ready_tokens, end};
    cache_.extend(seq, end, {LayerSet::all(2), {}}, StepId{++step_});
    cache_.step_submitted(StepId{step_}, {&slice, 1});
  }
  KvCache::StepOutcome end_step() { return cache_.step_ended(StepId{ended_ += 1}, true, {}); }
  // A sequence of so many tokens, computed by a step of the past.
  void computed(SeqId seq, uint32_t tokens) {
    std::vector<Token> of(tokens);
    std::iota(of.begin(), of.end(), static_cast<Token>(raw(seq) * 10000));
    cache_.add_sequence(seq, of, "");
    submit(seq, tokens);
    end_step();
    check();
  }
  std::vector<Transfer> add(SeqId seq, Interval range, Tier tier, const LayerSet& layers = LayerSet::all(2)) {
    return cache_.add_copies({Verb::kAdd, seq, range, layers, Form::kKv, tier, Trigger::kNow}, /*tail=*/true)
        .transfers;
  }
  void finish(const std::vector<Transfer>& transfers, bool ok = true) {
    for (const Transfer& t : transfers) {
      cache_.transfer_ended(t.id, ok ? Status() : error(ErrorCode::kUnavailable, "the peer is dead"));
      check();
    }
  }
  void leave(SeqId seq, Interval range, Tier tier, const LayerSet& layers = LayerSet::all(2)) {
    cache_.release({Verb::kDrop, seq, range, layers, Form::kKv, tier, Trigger::kWhenReady});
    check();
  }
  // All of it is on the host tier, and nothing on the device.
  void offload(SeqId seq) {
    const Interval all = {0, cache_.summary(seq).ready_tokens};
    finish(add(seq, all, Tier::kHost));
    leave(seq, all, Tier::kDevice);
  }
  // What is idle on the device goes.
  void push_out() {
    cache_.take_back(Tier::kDevice, cache_.lend(Tier::kDevice, 48));
    EXPECT_TRUE(cache_.map().idle(Tier::kDevice).empty());
  }
  // The borrowed cell in which a block lies.
  uint32_t cell_of(SeqId seq, uint32_t block, uint32_t group) const {
    const uint64_t at = cache_.block(cache_.blocks_of(seq)[block]).at(kAtHost).by_group[group].at;
    EXPECT_TRUE(cache_.is_borrowed(kAtHost, at));
    return static_cast<uint32_t>((at - cache_.options().borrowed_begin()) /
                                 cache_.geometry().kv_cell_bytes());
  }
  bool at_peers(SeqId seq, uint32_t leaf, uint32_t group) const {
    return cache_.lies_at_peers(cache_.holdings(seq), cache_.blocks_of(seq), leaf, group);
  }
  uint32_t cached_at_peers(SeqId seq) const {
    SequenceCells cells;
    cache_.count_cached_at_peers(seq, cells);
    EXPECT_FALSE(cells.attended) << "they are lent";
    return cells.cached_peer_blocks;
  }
  int64_t room(Tier tier = Tier::kHost) const { return cache_.budget(tier).available_cells(); }
  uint32_t promised(SeqId seq) const { return cache_.summary(seq).promised_cells[index_of(Tier::kHost)]; }

  KvCache cache_;
  uint64_t step_ = 0;
  uint64_t ended_ = 0;
};

class BorrowedBehindOwn : public Borrowed {
 protected:
  BorrowedBehindOwn() : Borrowed(3) {}
};

// ---------------------------------------------------------------- there, closed, gone

TEST_F(BorrowedBehindOwn, CellsAreThereFromWhenTheyAreAddedUntilTheyGo) {
  EXPECT_EQ(room(), 3) << "its own";
  EXPECT_EQ(cache_.budget(Tier::kHost).total_cells(), 3u);
  EXPECT_THAT(cache_.take_departed(), IsEmpty()) << "what was never there did not go";
  cache_.add_borrowed(std::vector<uint32_t>{0, 1, 5});
  EXPECT_EQ(room(), 6);
  EXPECT_EQ(cache_.borrowed_cells(), 3u);
  check();
  cache_.close_borrowed(std::vector<uint32_t>{1});
  EXPECT_EQ(room(), 5);
  EXPECT_EQ(cache_.borrowed_cells(), 2u);
  EXPECT_EQ(cache_.closed_borrowed_cells(), 1u);
  cache_.close_borrowed(std::vector<uint32_t>{1, 5, 9, 5});
  EXPECT_EQ(cache_.borrowed_cells(), 1u) << "one was closed already, one never there, and one is named twice";
  EXPECT_THAT(cache_.take_departed(), ElementsAre(1, 5));
  EXPECT_EQ(cache_.closed_borrowed_cells(), 0u);
  EXPECT_THAT(cache_.take_departed(), IsEmpty());
  cache_.add_borrowed(std::vector<uint32_t>{1});
  EXPECT_EQ(cache_.borrowed_cells(), 2u);
  EXPECT_EQ(room(), 5);
}

TEST_F(BorrowedBehindOwn, WhatIsBorrowedBeginsBehindItsOwn) {
  const uint64_t cell = cache_.geometry().kv_cell_bytes();
  EXPECT_EQ(cache_.options().borrowed_begin(), 3 * cell);
  EXPECT_FALSE(cache_.is_borrowed(kAtHost, 2 * cell));
  EXPECT_TRUE(cache_.is_borrowed(kAtHost, 3 * cell));
  EXPECT_FALSE(cache_.is_borrowed({Form::kKv, Tier::kDevice}, 3 * cell));
  computed(kFar, 2 * kQuarter);
  cache_.add_borrowed(std::vector<uint32_t>{7});
  uint32_t own = 0;
  for (const Transfer& t : add(kFar, {0, 2 * kQuarter}, Tier::kHost)) {
    for (const Segment& s : t.segments) own += s.to.offset < 3 * cell ? 1 : 0;
    cache_.transfer_ended(t.id, {});
  }
  EXPECT_EQ(own, 3u) << "its own come first";
  EXPECT_THAT(cache_.empty_borrowed(40), IsEmpty());
}

TEST_F(Borrowed, AClosedCellGoesWhenItsCopyIsNotNeeded) {
  cache_.add_borrowed(numbers(0, 8));
  computed(kFar, 4 * kQuarter);
  offload(kFar);
  EXPECT_THAT(cache_.idle_borrowed(), IsEmpty());
  EXPECT_EQ(room(), 0);
  EXPECT_THAT(cache_.in_closed_borrowed(), IsEmpty());
  const std::vector<uint32_t> wanted = {cell_of(kFar, 1, 1), cell_of(kFar, 2, 1), cell_of(kFar, 0, 0),
                                        cell_of(kFar, 3, 0), cell_of(kFar, 1, 0)};
  cache_.close_borrowed(wanted);
  check();
  EXPECT_THAT(cache_.take_departed(), IsEmpty());
  EXPECT_EQ(cache_.closed_borrowed_cells(), 5u);
  EXPECT_THAT(cache_.in_closed_borrowed(),
              ElementsAre(InClosed{kFar, 0, 2, 0}, InClosed{kFar, 3, 1, 0}, InClosed{kFar, 1, 2, 1}));
  EXPECT_EQ(cache_.summary(kFar).ready_tokens, 4 * kQuarter) << "their bytes are still there";
  // Blocks 1 and 2 of group 1 come home; one of them is given up at peers at once.
  finish(add(kFar, {kQuarter, 3 * kQuarter}, Tier::kDevice, LayerSet::one(1)));
  leave(kFar, {kQuarter, 2 * kQuarter}, Tier::kHost, LayerSet::one(1));
  EXPECT_THAT(cache_.take_departed(), ElementsAre(wanted[0])) << "published, and yet not kept";
  EXPECT_THAT(cache_.in_closed_borrowed(),
              ElementsAre(InClosed{kFar, 0, 2, 0}, InClosed{kFar, 3, 1, 0}, InClosed{kFar, 2, 1, 1}));
  cache_.remove_sequence(kFar);
  check();
  EXPECT_THAT(cache_.take_departed(), UnorderedElementsAre(wanted[1], wanted[2], wanted[3], wanted[4]));
  EXPECT_EQ(cache_.closed_borrowed_cells(), 0u);
  EXPECT_THAT(cache_.in_closed_borrowed(), IsEmpty());
  EXPECT_EQ(room(), 3);
  EXPECT_EQ(cache_.map().idle(Tier::kHost).size(), 3u) << "of blocks 0, 2 and 3 something is kept";
}

TEST_F(Borrowed, AClosedCellThatMayStayIsOpenAgain) {
  cache_.add_borrowed(numbers(0, 8));
  computed(kFar, 2 * kQuarter);
  offload(kFar);
  EXPECT_EQ(room(), 4);
  const uint32_t in_use = cell_of(kFar, 0, 0);
  const uint32_t empty = cache_.empty_borrowed(1).at(0);
  cache_.close_borrowed(std::vector<uint32_t>{in_use, empty});
  check();
  EXPECT_THAT(cache_.take_departed(), ElementsAre(empty));
  EXPECT_EQ(cache_.closed_borrowed_cells(), 1u);
  // One that is gone, and one that never was closed, are as they are.
  cache_.keep_borrowed(std::vector<uint32_t>{in_use, empty, cell_of(kFar, 1, 1)});
  check();
  EXPECT_EQ(cache_.closed_borrowed_cells(), 0u);
  EXPECT_EQ(cache_.borrowed_cells(), 7u);
  EXPECT_THAT(cache_.in_closed_borrowed(), IsEmpty());
  cache_.remove_sequence(kFar);
  check();
  EXPECT_THAT(cache_.take_departed(), IsEmpty());
}

TEST_F(Borrowed, WhatIsIdleInAClosedCellIsGivenUp) {
  cache_.add_borrowed(numbers(0, 8));
  computed(kFar, 4 * kQuarter);
  offload(kFar);
  const uint32_t wanted = cell_of(kFar, 2, 0);
  cache_.remove_sequence(kFar);
  EXPECT_EQ(cache_.map().idle(Tier::kHost).size(), 4u);
  EXPECT_EQ(cache_.idle_borrowed().size(), 8u);
  EXPECT_THAT(cache_.idle_borrowed(), testing::Contains(wanted));
  cache_.close_borrowed(std::vector<uint32_t>{wanted});
  check();
  EXPECT_THAT(cache_.take_departed(), ElementsAre(wanted));
  EXPECT_EQ(cache_.map().idle(Tier::kHost).size(), 3u) << "the other blocks stay";
  EXPECT_EQ(room(), 7);
  push_out();
  std::vector<Token> same(4 * kQuarter + 1);
  std::iota(same.begin(), same.end(), static_cast<Token>(raw(kFar) * 10000));
  cache_.add_sequence(kNear, same, "");
  EXPECT_EQ(cache_.cached(kNear).matched, 2u) << "the block is found no more";
}

TEST_F(Borrowed, ACellThatIsBeingFilledGoesWhenThatHasEnded) {
  cache_.add_borrowed(numbers(0, 2));
  computed(kFar, kQuarter);
  const std::vector<Transfer> out = add(kFar, {0, kQuarter}, Tier::kHost);
  cache_.close_borrowed(numbers(0, 2));
  check();
  cache_.remove_sequence(kFar);
  EXPECT_THAT(cache_.take_departed(), IsEmpty()) << "bytes are on their way there";
  finish(out);
  EXPECT_THAT(cache_.take_departed(), UnorderedElementsAre(0, 1));
}

TEST_F(Borrowed, TheEmptyOnesAreFoundFromTheLastOn) {
  EXPECT_THAT(cache_.empty_borrowed(9), IsEmpty()) << "none is there";
  cache_.add_borrowed(numbers(0, 6));
  computed(kFar, kQuarter);
  finish(add(kFar, {0, kQuarter}, Tier::kHost));
  std::vector<uint32_t> expected;
  for (uint32_t cell = 6; cell-- > 0;) {
    if (cell != cell_of(kFar, 0, 0) && cell != cell_of(kFar, 0, 1)) expected.push_back(cell);
  }
  EXPECT_EQ(cache_.empty_borrowed(40), expected);
  EXPECT_THAT(cache_.empty_borrowed(2), ElementsAre(expected[0], expected[1]));
  cache_.close_borrowed(std::vector<uint32_t>{expected[0]});
  EXPECT_THAT(cache_.empty_borrowed(1), ElementsAre(expected[1]));
  cache_.remove_sequence(kFar);
  EXPECT_EQ(cache_.empty_borrowed(40).size(), 3u) << "what is idle may still be of use";
}

// ---------------------------------------------------------------- lost

TEST_F(Borrowed, ASequenceWithoutAnotherCopyOfALostCellIsCutBack) {
  cache_.add_borrowed(numbers(0, 20));
  computed(kFar, 5 * kQuarter);
  computed(kNear, 5 * kQuarter);
  offload(kFar);
  finish(add(kNear, {0, 5 * kQuarter}, Tier::kHost));  // which stays on the device, too
  (void)cache_.take_changed();
  cache_.lose_borrowed(std::vector<uint32_t>{cell_of(kFar, 2, 1), cell_of(kNear, 0, 0)});
  check();
  EXPECT_THAT(cache_.take_cut_back(), ElementsAre(kFar));
  EXPECT_EQ(cache_.summary(kFar).ready_tokens, 2 * kQuarter);
  EXPECT_EQ(cache_.summary(kNear).ready_tokens, 5 * kQuarter);
  EXPECT_EQ(cache_.summary(kNear).kv_cells(Tier::kHost), 9u);
  EXPECT_THAT(cache_.take_changed(), testing::IsSupersetOf({kFar, kNear}));
  EXPECT_EQ(cache_.take_departed().size(), 2u);
  EXPECT_EQ(cache_.borrowed_cells(), 18u);
  EXPECT_EQ(cache_.closed_borrowed_cells(), 0u);
}

TEST_F(Borrowed, ALostCellIsNoCopyWhateverFillsIt) {
  cache_.add_borrowed(numbers(0, 2));
  computed(kFar, kQuarter);
  const std::vector<Transfer> out = add(kFar, {0, kQuarter}, Tier::kHost);
  leave(kFar, {0, kQuarter}, Tier::kDevice);
  const uint32_t lost = cell_of(kFar, 0, 1);
  cache_.lose_borrowed(std::vector<uint32_t>{lost});
  check();
  EXPECT_THAT(cache_.take_departed(), IsEmpty());
  finish(out);
  EXPECT_THAT(cache_.take_departed(), ElementsAre(lost));
  EXPECT_THAT(cache_.take_cut_back(), IsEmpty()) << "on the device it was still there";
  EXPECT_EQ(cache_.summary(kFar).ready_tokens, kQuarter);
  EXPECT_EQ(cache_.summary(kFar).kv_cells(Tier::kDevice), 1u) << "where it stays in that group";
  EXPECT_EQ(cache_.summary(kFar).kv_cells(Tier::kHost), 1u);
}

TEST_F(Borrowed, ALostCellThatIsOnItsWayHomeIsLost) {
  cache_.add_borrowed(numbers(0, 2));
  computed(kFar, kQuarter);
  offload(kFar);
  push_out();
  const uint32_t lost = cell_of(kFar, 0, 0);
  cache_.close_borrowed(std::vector<uint32_t>{lost});
  const std::vector<Transfer> home = add(kFar, {0, kQuarter}, Tier::kDevice);
  ASSERT_EQ(home.size(), 2u);
  cache_.lose_borrowed(std::vector<uint32_t>{lost});
  check();
  EXPECT_EQ(cache_.borrowed_cells(), 1u) << "it is counted as closed once";
  EXPECT_THAT(cache_.take_departed(), IsEmpty()) << "it is read";
  EXPECT_EQ(cache_.closed_borrowed_cells(), 1u);
  finish(home, /*ok=*/false);
  EXPECT_THAT(cache_.take_departed(), ElementsAre(lost));
  EXPECT_EQ(cache_.summary(kFar).ready_tokens, 0u);
  EXPECT_THAT(cache_.take_cut_back(), testing::Contains(kFar));
}

// A step that reads there what is lost meanwhile counts for nothing, and holds the cell until it ends.
TEST_F(Borrowed, AStepThatReadsALostCellIsSpoilt) {
  cache_.add_borrowed(numbers(0, 8));
  computed(kFar, 4 * kQuarter);
  for (Token t = 0; t < 2; ++t) cache_.append_token(kFar, t);
  offload(kFar);
  std::vector<KvCache::Use> uses;
  for (uint32_t block = 0; block < 4; ++block) {
    for (uint32_t g = 0; g < 2; ++g)
      uses.push_back({cache_.blocks_of(kFar)[block], kAtHost, LayerSet::one(g), false});
  }
  cache_.begin_read(uses);
  submit(kFar, 4 * kQuarter + 1);
  EXPECT_EQ(cache_.summary(kFar).transfers, 0u) << "nothing moves";
  const uint32_t lost = cell_of(kFar, 3, 1);
  cache_.lose_borrowed(std::vector<uint32_t>{lost});
  check();
  EXPECT_THAT(cache_.take_departed(), IsEmpty());
  EXPECT_EQ(cache_.summary(kFar).ready_tokens, 3 * kQuarter);
  EXPECT_THAT(end_step().void_rows, ElementsAre(kFar));
  check();
  EXPECT_THAT(cache_.take_departed(), ElementsAre(lost));
  EXPECT_EQ(cache_.transfers_in_flight(), 0u);
}

// ---------------------------------------------------------------- promises

TEST_F(Borrowed, OfPromisesWithoutRoomTheLatestAreBroken) {
  cache_.add_borrowed(numbers(0, 10));
  for (SeqId seq : {kLatest, kFar, kNear}) cache_.add_sequence(seq, {1, 2, 3}, "");
  cache_.promise({kFar, 4, Tier::kHost});
  cache_.promise({kNear, 3, Tier::kHost});
  cache_.promise({kLatest, 2, Tier::kHost});
  (void)cache_.take_changed();
  cache_.close_borrowed(numbers(0, 1));
  check();
  EXPECT_EQ(room(), 0);
  EXPECT_EQ(promised(kLatest), 2u) << "there is room for all of them";
  cache_.close_borrowed(numbers(1, 4));
  check();
  EXPECT_EQ(room(), 0);
  EXPECT_EQ(promised(kFar), 4u);
  EXPECT_EQ(promised(kNear), 2u);
  EXPECT_EQ(promised(kLatest), 0u);
  EXPECT_THAT(cache_.take_changed(), testing::UnorderedElementsAre(kNear, kLatest));
}

TEST_F(Borrowed, TheSharedReserveIsBrokenFirst) {
  cache_.add_borrowed(numbers(0, 10));
  cache_.add_sequence(kFar, {1, 2, 3}, "");
  cache_.promise({kFar, 4, Tier::kHost});
  cache_.promise({SeqId{}, 5, Tier::kHost, Promise::Kind::kReserve});
  cache_.close_borrowed(numbers(0, 4));
  EXPECT_EQ(cache_.reserved_cells()[index_of(Tier::kHost)], 2u);
  EXPECT_EQ(promised(kFar), 4u);
  cache_.close_borrowed(numbers(4, 7));
  EXPECT_EQ(cache_.reserved_cells()[index_of(Tier::kHost)], 0u);
  EXPECT_EQ(promised(kFar), 3u);
  EXPECT_EQ(room(), 0);
}

// ---------------------------------------------------------------- where leaves lie

TEST_F(Borrowed, WholeLeavesAtPeersNeedNoStaging) {
  cache_.add_borrowed(numbers(0, 40));
  computed(kFar, 10 * kQuarter);  // two leaves, and two blocks
  EXPECT_EQ(cache_.summary(kFar).peer_blocks, 0u);
  finish(add(kFar, {0, 10 * kQuarter}, Tier::kHost));
  EXPECT_EQ(cache_.summary(kFar).peer_blocks, 0u) << "all of it is on the device, too";
  leave(kFar, {0, 10 * kQuarter}, Tier::kDevice);
  for (uint32_t g = 0; g < 2; ++g) {
    EXPECT_TRUE(at_peers(kFar, 0, g));
    EXPECT_TRUE(at_peers(kFar, 1, g));
    EXPECT_FALSE(at_peers(kFar, 2, g)) << "it is no whole leaf";
  }
  EXPECT_EQ(cache_.summary(kFar).peer_blocks, 8u);
  EXPECT_EQ(cache_.summary(kFar).first_device_block, 10u);
  // Of group 0 a block of the first leaf is on the device: the other three are staged, and block 8 and 9.
  finish(add(kFar, {kQuarter, 2 * kQuarter}, Tier::kDevice, LayerSet::one(0)));
  EXPECT_FALSE(at_peers(kFar, 0, 0));
  EXPECT_TRUE(at_peers(kFar, 0, 1));
  SequenceCells s = cache_.summary(kFar);
  EXPECT_EQ(s.blocks - s.resident_blocks - s.peer_blocks, 5u);
  EXPECT_EQ(s.first_device_block, 1u);
  // With the whole leaf there, group 1 passes more blocks than group 0: 8 and 9.
  finish(add(kFar, {0, 4 * kQuarter}, Tier::kDevice, LayerSet::one(0)));
  s = cache_.summary(kFar);
  EXPECT_EQ(s.blocks - s.resident_blocks - s.peer_blocks, 2u);
  EXPECT_EQ(s.peer_blocks, 8u);
  // And with all of it in group 0 nothing changes.
  finish(add(kFar, {0, 10 * kQuarter}, Tier::kDevice, LayerSet::one(0)));
  s = cache_.summary(kFar);
  EXPECT_EQ(s.blocks - s.resident_blocks - s.peer_blocks, 2u);
  finish(add(kFar, {0, 10 * kQuarter}, Tier::kDevice, LayerSet::one(1)));
  s = cache_.summary(kFar);
  EXPECT_EQ(s.resident_blocks, s.blocks);
  EXPECT_EQ(s.peer_blocks, 0u);
}

TEST_F(BorrowedBehindOwn, ALeafOfWhichSomeLiesInItsOwnCellsIsNotAtPeers) {
  cache_.add_borrowed(numbers(0, 40));
  computed(kFar, 8 * kQuarter);
  offload(kFar);
  // Its own three cells took blocks 0, 1 and 2 of group 0.
  EXPECT_FALSE(at_peers(kFar, 0, 0));
  EXPECT_TRUE(at_peers(kFar, 1, 0));
  EXPECT_TRUE(at_peers(kFar, 0, 1));
  EXPECT_EQ(cache_.summary(kFar).peer_blocks, 4u) << "of group 0 a leaf is staged";
}

TEST_F(Borrowed, ABlockThatIsNotFullIsNotAttendedAtPeers) {
  cache_.add_borrowed(numbers(0, 40));
  computed(kFar, 8 * kQuarter - 5);
  offload(kFar);
  EXPECT_EQ(cache_.summary(kFar).kv_cells(Tier::kHost), 16u);
  EXPECT_TRUE(at_peers(kFar, 0, 0));
  EXPECT_FALSE(at_peers(kFar, 1, 0));
  EXPECT_EQ(cache_.summary(kFar).peer_blocks, 4u);
}

TEST_F(Borrowed, WhatHasCellsDroppedIsNotAttendedAtPeers) {
  cache_.add_borrowed(numbers(0, 40));
  computed(kFar, 8 * kQuarter);
  offload(kFar);
  EXPECT_EQ(cache_.summary(kFar).peer_blocks, 8u);
  cache_.drop({Verb::kDrop,
               kFar,
               {5 * kQuarter, 6 * kQuarter},
               LayerSet::one(1),
               Form::kKv,
               Tier::kHost,
               Trigger::kNow});
  check();
  EXPECT_EQ(cache_.summary(kFar).dropped_cells, 1u);
  EXPECT_EQ(cache_.summary(kFar).peer_blocks, 0u);
  EXPECT_FALSE(at_peers(kFar, 1, 1));
  EXPECT_TRUE(at_peers(kFar, 1, 0));
}

TEST_F(Borrowed, WhatIsStillOnItsWayToPeersCountsAsThere) {
  cache_.add_borrowed(numbers(0, 8));
  computed(kFar, 4 * kQuarter);
  const std::vector<Transfer> out = add(kFar, {0, 4 * kQuarter}, Tier::kHost);
  EXPECT_FALSE(at_peers(kFar, 0, 0)) << "it is on the device";
  leave(kFar, {0, 4 * kQuarter}, Tier::kDevice);
  EXPECT_FALSE(at_peers(kFar, 0, 0)) << "it stays there until the copy is ready";
  finish({out[0]});
  EXPECT_TRUE(at_peers(kFar, 0, 0));
  EXPECT_FALSE(at_peers(kFar, 0, 1));
  EXPECT_EQ(cache_.summary(kFar).peer_blocks, 4u) << "the other group needs no staging";
  finish({out[1]});
  EXPECT_TRUE(at_peers(kFar, 0, 1));
}

// ---------------------------------------------------------------- lent

TEST_F(BorrowedBehindOwn, WhatIsLentIsKeptFromAllUntilItIsTakenBack) {
  computed(kFar, 2 * kQuarter);
  const int64_t free = room(Tier::kDevice);
  ASSERT_EQ(free, 44);
  cache_.promise({kFar, 40, Tier::kDevice});
  const std::vector<uint64_t> lent = cache_.lend(Tier::kDevice, 3);
  ASSERT_EQ(lent.size(), 3u);
  EXPECT_EQ(cache_.lent_cells(Tier::kDevice), 3u);
  EXPECT_EQ(room(Tier::kDevice), 1);
  check();
  const std::vector<uint64_t> rest = cache_.lend(Tier::kDevice, 3);
  EXPECT_EQ(rest.size(), 1u) << "what is promised is not lent";
  EXPECT_THAT(cache_.lend(Tier::kDevice, 3), IsEmpty());
  check();
  std::set<uint64_t> frames(lent.begin(), lent.end());
  frames.insert(rest.begin(), rest.end());
  EXPECT_EQ(frames.size(), 4u);
  for (BlockId id : cache_.blocks_of(kFar)) {
    for (uint32_t g = 0; g < 2; ++g)
      EXPECT_FALSE(frames.contains(cache_.block(id).at(kDeviceKv).by_group[g].at));
  }
  cache_.take_back(Tier::kDevice, std::vector<uint64_t>{lent[1]});
  check();
  EXPECT_EQ(cache_.lent_cells(Tier::kDevice), 3u);
  EXPECT_EQ(room(Tier::kDevice), 1);
  cache_.take_back(Tier::kDevice, std::vector<uint64_t>{rest[0], lent[0], lent[2]});
  EXPECT_EQ(room(Tier::kDevice), 4);
  EXPECT_EQ(cache_.lent_cells(Tier::kHost), 0u);
}

TEST_F(Borrowed, WhatIsIdleGivesWayToWhatIsLent) {
  computed(kFar, 20 * kQuarter);
  cache_.remove_sequence(kFar);
  EXPECT_EQ(cache_.map().idle(Tier::kDevice).size(), 20u);
  const std::vector<uint64_t> lent = cache_.lend(Tier::kDevice, 10);
  EXPECT_EQ(lent.size(), 10u);
  EXPECT_EQ(cache_.map().idle(Tier::kDevice).size(), 19u) << "eight were free";
  check();
  cache_.take_back(Tier::kDevice, lent);
}

// ---------------------------------------------------------------- computed here for a peer, and at a peer

std::vector<BlockHash> chain_of(SeqId seq, uint32_t blocks) {
  std::vector<Token> tokens(blocks * kQuarter);
  std::iota(tokens.begin(), tokens.end(), static_cast<Token>(raw(seq) * 10000));
  std::vector<BlockHash> chain = {root_hash("", "")};
  for (uint32_t b = 0; b < blocks; ++b) {
    chain.push_back(block_hash(chain.back(), std::span(tokens).subspan(b * kQuarter, kQuarter)));
  }
  chain.erase(chain.begin());
  return chain;
}

TEST_F(Borrowed, BlocksAreLentAsTheyAre) {
  computed(kFar, 5 * kQuarter + 1);
  std::vector<uint64_t> at;
  for (uint32_t b = 0; b < 4; ++b) {
    for (uint32_t g = 0; g < 2; ++g)
      at.push_back(cache_.block(cache_.blocks_of(kFar)[b]).at(kDeviceKv).by_group[g].at);
  }
  const auto chain = chain_of(kFar, 4);
  EXPECT_FALSE(cache_.lend_blocks(chain)) << "a sequence has them";
  cache_.remove_sequence(kFar);
  const auto lent = cache_.lend_blocks(chain);
  ASSERT_TRUE(lent);
  std::vector<uint64_t> frames;
  for (const KvCache::Frame& f : *lent) {
    EXPECT_EQ(f.tier, Tier::kDevice);
    frames.push_back(f.at);
  }
  EXPECT_EQ(frames, at);
  EXPECT_EQ(cache_.lent_cells(Tier::kDevice), 8u);
  EXPECT_EQ(room(Tier::kDevice), 40);
  check();
  EXPECT_THAT(*cache_.lend_blocks(chain), IsEmpty()) << "they are not found any more";
  EXPECT_EQ(cache_.map().idle(Tier::kDevice).size(), 1u) << "the fifth";
  cache_.take_back(Tier::kDevice, frames);
  EXPECT_EQ(room(Tier::kDevice), 48);
}

TEST_F(Borrowed, OfBlocksThatArePromisedNoneAreLent) {
  computed(kFar, 4 * kQuarter);
  cache_.remove_sequence(kFar);
  cache_.add_sequence(kNear, {1, 2, 3}, "");
  cache_.promise({kNear, 45, Tier::kDevice});
  const auto lent = cache_.lend_blocks(chain_of(kFar, 4));
  ASSERT_TRUE(lent);
  EXPECT_EQ(lent->size(), 2u) << "three cells are left";
  for (const KvCache::Frame& f : *lent) cache_.take_back(f.tier, {&f.at, 1});
}

TEST_F(Borrowed, WhatAPeerHasComputedIsAdoptedWhereItLies) {
  cache_.add_borrowed(numbers(5, 15));
  // The fifth block is no leaf.
  EXPECT_EQ(cache_.add_cached(chain_of(kFar, 5), numbers(5, 15)), 5u);
  check();
  EXPECT_EQ(room(), 10) << "nothing needs it";
  std::vector<Token> tokens(6 * kQuarter);
  std::iota(tokens.begin(), tokens.end(), static_cast<Token>(raw(kFar) * 10000));
  cache_.add_sequence(kFar, tokens, "");
  const SequenceCells s = cache_.summary(kFar);
  EXPECT_EQ(s.cached_tokens, 5 * kQuarter);
  EXPECT_EQ(cached_at_peers(kFar), 4u);
  EXPECT_EQ(s.cached_resident_cells, 0u);
  cache_.adopt(kFar, s.cached_tokens);
  EXPECT_EQ(room(), 0);
  for (uint32_t g = 0; g < 2; ++g) {
    EXPECT_TRUE(at_peers(kFar, 0, g));
    for (uint32_t b = 0; b < 5; ++b) EXPECT_EQ(cell_of(kFar, b, g), 5 + 2 * b + g);
  }
  EXPECT_EQ(cache_.summary(kFar).peer_blocks, 4u);
  cache_.lose_borrowed(std::vector<uint32_t>{8});
  EXPECT_THAT(cache_.take_cut_back(), ElementsAre(kFar));
  EXPECT_EQ(cache_.summary(kFar).ready_tokens, 64u) << "block 1 is lost";
}

TEST_F(Borrowed, ALeafThatIsPartlyOnTheDeviceIsNotAtPeers) {
  computed(kFar, 2 * kQuarter);
  cache_.remove_sequence(kFar);
  cache_.add_borrowed(numbers(0, 8));
  EXPECT_EQ(cache_.add_cached(chain_of(kFar, 4), numbers(0, 8)), 2u) << "two are here";
  check();
  EXPECT_THAT(cache_.empty_borrowed(8), UnorderedElementsAre(0, 1, 2, 3));
  std::vector<Token> tokens(4 * kQuarter + 1);
  std::iota(tokens.begin(), tokens.end(), static_cast<Token>(raw(kFar) * 10000));
  cache_.add_sequence(kFar, tokens, "");
  EXPECT_EQ(cache_.summary(kFar).cached_tokens, 4 * kQuarter);
  EXPECT_EQ(cached_at_peers(kFar), 0u);
}

TEST(BorrowedDeathTest, OnlyWhatIsLentIsTakenBack) {
  KvCache cache(borrowing(0, 4));
  const std::vector<uint64_t> lent = cache.lend(Tier::kDevice, 1);
  EXPECT_DEATH(cache.take_back(Tier::kDevice, std::vector<uint64_t>{lent[0], lent[0]}), "2 of 1 lent");
  EXPECT_DEATH(cache.take_back(Tier::kHost, lent), "1 of 0 lent");
}

TEST(BorrowedDeathTest, WhereMemoryIsBorrowedThereIsNothingButKv) {
  CacheOptions o = borrowing(0, 4);
  o.geometry.x_bytes_per_token_layer = 8;
  EXPECT_DEATH(KvCache{o}, "at peers=");
}

}  // namespace
}  // namespace kvasir
