// Plans of sequences whose history lies at peers: what of it needs no staging, and when a plan may wait for
// what a peer lends. Blocks have 16 tokens, 16 to a leaf of attention, and two cells.
#include <gtest/gtest.h>

#include <string>

#include "fakes/plan_checks.h"
#include "fakes/views.h"
#include "plan/plan_builder.h"
#include "plan/plan_checker.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kLeafBlocks = 16;
constexpr uint32_t kLeaves = 6;
constexpr uint32_t kBehind = 20;  // full blocks behind the leaves

// Sequence 1 streams: six leaves at peers, 20 blocks more there that are no leaves or lie apart, and a block
// that is not full on the device. The ring passes 32 blocks.
View view_at_peers(uint32_t peer_blocks = kLeaves * kLeafBlocks) {
  View view = make_view(20, 10);
  set_host(view, 200, 60);
  set_ring(view, 32);
  view.peers.most_borrowed = 500;
  view.peers.borrowed = 400;
  const uint32_t ready = (kLeaves * kLeafBlocks + kBehind) * kViewBlock + 5;
  SeqView s = streaming_seq(1, 300, ready + 1, ready);
  s.peer_blocks = peer_blocks;
  view.running = {s};
  return view;
}

TEST(PlanPeers, WhatLiesAtPeersNeedsNoRing) {
  View view = view_at_peers();
  ASSERT_TRUE(PlanBuilder(view).kv_placement(view.running[0]).streams);
  PlanBuilder b(view);
  EXPECT_TRUE(b.can_run(view.running[0]));
  ASSERT_TRUE(b.decode(view.running[0]));
  EXPECT_EQ(b.stage_room(), 32 - kBehind);
  EXPECT_EQ(checked(view, b),
            "stage 1 [0, 1861) kv device x2 before_layer\n"
            "decode 1 [1861, 1862) samples\n");
  set_ring(view, kBehind);
  EXPECT_TRUE(PlanBuilder(view).can_run(view.running[0])) << "it need not pass more";
  set_ring(view, kBehind - 1);
  EXPECT_FALSE(PlanBuilder(view).can_run(view.running[0]));
}

TEST(PlanPeers, WithALeafLessTheRingIsTooSmallAndTheCheckerSaysSo) {
  const View view = view_at_peers();
  PlanBuilder b(view);
  ASSERT_TRUE(b.decode(view.running[0]));
  const StepPlan plan = b.take();
  EXPECT_TRUE(check_plan(view, plan).ok());
  const View fewer = view_at_peers((kLeaves - 1) * kLeafBlocks);
  expect_broken(fewer, plan, "36");
  PlanBuilder c(fewer);
  EXPECT_FALSE(c.can_run(fewer.running[0]));
  EXPECT_FALSE(c.decode(fewer.running[0]));
  EXPECT_EQ(c.stage_room(), 32u);
}

// A prompt of 103 blocks, of which the first 96 go to peers and are cached there: the host tier has no other
// cells.
View view_cached_at_peers(uint32_t peer_blocks) {
  View view = make_view(20, 10);
  set_host(view, 200, kLeaves * kLeafBlocks);
  set_ring(view, 32);
  view.peers.most_borrowed = 500;
  view.peers.borrowed = 400;
  const uint32_t cached = kLeaves * kLeafBlocks * kViewBlock;
  SeqView s = waiting_seq(1, cached + 100);
  s.cached_tokens = cached;
  s.cached_idle[index_of(Form::kKv)][index_of(Tier::kHost)] = kLeaves * kLeafBlocks * kViewGroups;
  s.cached_peer_blocks = peer_blocks;
  view.waiting = {s};
  return view;
}

TEST(PlanPeers, LeavesAtPeersAreAdoptedWhereTheyLie) {
  const View view = view_cached_at_peers(kLeaves * kLeafBlocks);
  PlanBuilder b(view);
  ASSERT_TRUE(b.kv_placement(view.waiting[0]).streams);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  EXPECT_EQ(b.prefill(view.waiting[0], 1000), 100u);
  EXPECT_EQ(b.stage_room(), 32u);
  EXPECT_EQ(checked(view, b),
            "adopt 1 [0, 1536)\n"
            "stage 1 [0, 1536) kv device x2 before_layer\n"
            "promise 1 14 cells on device\n"
            "prefill 1 [1536, 1636) samples\n")
      << "of the host tier nothing is promised: it has no cells but those";
}

TEST(PlanPeers, LeavesThatAreNotAtPeersPassTheRingOrAreComputedAgain) {
  const View view = view_cached_at_peers((kLeaves - 3) * kLeafBlocks);
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  const StepPlan plan = b.take();
  EXPECT_TRUE(plan.adoptions.empty()) << "48 blocks do not pass a ring of 32";
}

// A prompt of 103 blocks, of which the first 96 are a peer's, and attended there. It fits on the device of
// 150, of which 10 are free.
View view_attended(uint32_t peer_blocks) {
  View view = make_view(150, 10);
  const uint32_t cached = kLeaves * kLeafBlocks * kViewBlock;
  SeqView s = waiting_seq(1, cached + 100);
  s.cached_tokens = cached;
  s.cached_peer_blocks = peer_blocks;
  s.attended = true;
  view.waiting = {s};
  return view;
}

TEST(PlanPeers, WhatAPeerKeepsIsAttendedThereByOneThatDoesNotStream) {
  View view = view_attended(kLeaves * kLeafBlocks);
  PlanBuilder b(view);
  ASSERT_FALSE(b.kv_placement(view.waiting[0]).streams);
  ASSERT_TRUE(b.admit(view.waiting[0])) << "without a ring";
  EXPECT_EQ(b.prefill(view.waiting[0], 1000), 100u);
  EXPECT_EQ(checked(view, b),
            "adopt 1 [0, 1536)\n"
            "stage 1 [0, 1536) kv device x2 before_layer\n"
            "promise 1 14 cells on device\n"
            "prefill 1 [1536, 1636) samples\n");
  view.waiting[0].attended = false;
  PlanBuilder c(view);
  EXPECT_FALSE(c.admit(view.waiting[0])) << "lent blocks would come to the device";
}

TEST(PlanPeers, OneThatWasPreemptedFindsThemThere) {
  View view = view_attended(0);
  SeqView s = running_seq(1, 1636, 1637, 1636);
  s.resident_blocks = 7;
  s.device_groups = {};
  set_cells(s, Tier::kDevice, 14);
  set_cells(s, Tier::kHost, kLeaves * kLeafBlocks * kViewGroups);
  s.peer_blocks = kLeaves * kLeafBlocks;
  s.attended = true;
  view.waiting = {s};
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  ASSERT_TRUE(b.decode(view.waiting[0]));
  EXPECT_TRUE(check_plan(view, b.take()).ok());
  view.waiting[0].peer_blocks -= kLeafBlocks;
  PlanBuilder c(view);
  EXPECT_FALSE(c.admit(view.waiting[0])) << "of a leaf some is on the host, and there is no ring";
}

TEST(PlanPeers, ALeafOfWhichSomeComesToTheDeviceIsStaged) {
  View view = view_at_peers();
  const LayerSet one = LayerSet::one(1);
  struct Case {
    Interval blocks;
    uint32_t staged;
  };
  for (const Case& c : {Case{{0, 1}, 36}, Case{{15, 16}, 36}, Case{{15, 17}, 52}, Case{{0, 32}, 52}}) {
    for (uint32_t ring : {c.staged, c.staged - 1}) {
      set_ring(view, ring);
      PlanBuilder b(view);
      const Interval tokens = {c.blocks.begin * kViewBlock, c.blocks.end * kViewBlock};
      const bool fits = c.blocks.size() <= 20;
      ASSERT_EQ(b.add_copies(view.running[0], tokens, one, Tier::kDevice, Trigger::kNow), fits);
      if (!fits) {
        ASSERT_TRUE(b.decode(view.running[0])) << "nothing was planned, and nothing taken back";
        EXPECT_EQ(b.stage_room(), ring - kBehind);
        continue;
      }
      EXPECT_EQ(b.decode(view.running[0]), ring == c.staged) << c.blocks.begin << " " << ring;
      if (ring == c.staged) {
        EXPECT_EQ(b.stage_room(), 0u);
      }
      EXPECT_TRUE(check_plan(view, b.take()).ok());
    }
  }
}

TEST(PlanPeers, TheCheckerCountsTheLeavesThatCopiesBreak) {
  View view = view_at_peers();
  PlanBuilder b(view);
  ASSERT_TRUE(b.decode(view.running[0]));
  StepPlan plan = b.take();
  CopyChange home = {Verb::kAdd, SeqId{1},      {0, kViewBlock}, LayerSet::one(0),
                     Form::kKv,  Tier::kDevice, Trigger::kNow};
  plan.copies.push_back(home);
  expect_broken(view, plan, "36");
  plan.copies.back().tier = Tier::kHost;
  EXPECT_TRUE(check_plan(view, plan).ok()) << "there it breaks none";
  plan.copies.back() = home;
  set_ring(view, 36);
  EXPECT_TRUE(check_plan(view, plan).ok());
  plan.copies.back().tokens = {(kLeafBlocks - 1) * kViewBlock, (kLeafBlocks + 1) * kViewBlock};
  expect_broken(view, plan, "52");
}

TEST(PlanPeers, BehindItsRowsNoCopyBreaksALeaf) {
  const View view = view_at_peers();
  const Interval block = {0, kViewBlock};
  PlanBuilder b(view);
  ASSERT_TRUE(b.decode(view.running[0]));
  EXPECT_FALSE(b.add_copies(view.running[0], block, LayerSet::one(0), Tier::kDevice, Trigger::kNow));
  EXPECT_TRUE(b.add_copies(view.running[0], block, LayerSet::one(0), Tier::kHost, Trigger::kNow));
  EXPECT_TRUE(check_plan(view, b.take()).ok());
  const View none = view_at_peers(0);
  View wide = none;
  set_ring(wide, 200);
  PlanBuilder c(wide);
  ASSERT_TRUE(c.decode(wide.running[0]));
  EXPECT_TRUE(c.add_copies(wide.running[0], block, LayerSet::one(0), Tier::kDevice, Trigger::kNow))
      << "of what lies nowhere else none is broken";
}

TEST(PlanPeers, APrefillThatStreamsHasTheRestOfTheRing) {
  View view = view_at_peers();
  const uint32_t ready = (kLeaves * kLeafBlocks + kBehind) * kViewBlock;
  SeqView s = streaming_seq(1, ready + 400, ready + 400, ready);
  s.max_total_tokens = ready + 500;
  s.peer_blocks = kLeaves * kLeafBlocks;
  view.running = {s};
  PlanBuilder b(view);
  // Twelve full blocks pass the ring beside what is staged, and a block that is not full has frames.
  EXPECT_EQ(b.prefill(view.running[0], 1000), 12 * kViewBlock + 15);
  EXPECT_EQ(b.stage_room(), 0u);
  EXPECT_TRUE(check_plan(view, b.take()).ok());
}

// ---------------------------------------------------------------- what goes, and what stays

// Up to 640 tokens, 40 blocks. The device has 20, two of them for what is being written, so that 22 go at
// least: with whole leaves 32, tokens [0, 512), in both layer groups. The other eight stay.
View view_before_it_runs(uint32_t prompt) {
  View view = make_view(20, 20);
  set_ring(view, 32);
  set_host(view, 100, 100);
  view.peers.most_borrowed = 500;
  view.peers.borrowed = 200;
  view.waiting = {waiting_seq(1, prompt)};
  view.waiting[0].max_total_tokens = 640;
  view.limits.max_num_batched_tokens = 1000;
  return view;
}

TEST(PlanPeers, TheOldestLeavesGoInEveryLayerAndTheRestHasItsRoomHere) {
  const View view = view_before_it_runs(540);
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  EXPECT_EQ(b.prefill(view.waiting[0], 1000), 512u) << "a chunk ends where what stays begins";
  EXPECT_EQ(checked(view, b),
            "add 1 [0, 512) kv host x2 after_layer_writes\n"
            "promise 1 4 cells on device\n"
            "promise 1 64 cells on host\n"
            "prefill 1 [0, 512) x2 keeps kv x0 x x0\n");
}

TEST(PlanPeers, WhatStaysIsWrittenToTheDevice) {
  View view = view_before_it_runs(540);
  view.device.spare_slabs = 20;
  SeqView s = streaming_seq(1, 540, 540, 512);
  s.max_total_tokens = 640;
  s.peer_blocks = 32;
  view.waiting.clear();
  view.running = {s};
  PlanBuilder b(view);
  EXPECT_EQ(b.prefill(view.running[0], 1000), 28u);
  EXPECT_EQ(checked(view, b),
            "stage 1 [0, 512) kv device x2 before_layer\n"
            "prefill 1 [512, 540) samples\n");
  // Later: of 36 blocks the device has four, and the last is not full.
  s = running_seq(1, 540, 571, 570);
  s.max_total_tokens = 640;
  s.peer_blocks = 32;
  s.resident_blocks = 4;
  s.device_groups = {};
  set_cells(s, Tier::kHost, 64);
  set_cells(s, Tier::kDevice, 8);
  view.running = {s};
  PlanBuilder c(view);
  ASSERT_TRUE(c.decode(view.running[0]));
  EXPECT_EQ(checked(view, c),
            "stage 1 [0, 570) kv device x2 before_layer\n"
            "decode 1 [570, 571) samples\n");
}

// What was filled token by token is on the device until it has gone: of 33 blocks the two last ones of what
// goes, and one behind them.
TEST(PlanPeers, OnlyWhatGoesIsMovedAway) {
  View view = view_before_it_runs(20);
  view.device.spare_slabs = 20;
  SeqView s = running_seq(1, 20, 521, 520);
  s.max_total_tokens = 640;
  s.resident_blocks = 3;
  s.device_groups = {};
  set_cells(s, Tier::kHost, 60);
  set_cells(s, Tier::kDevice, 6);
  view.waiting.clear();
  view.running = {s};
  PlanBuilder b(view);
  ASSERT_TRUE(b.decode(view.running[0]));
  EXPECT_EQ(checked(view, b),
            "stage 1 [0, 520) kv device x2 before_layer\n"
            "add 1 [0, 512) kv host x2 background\n"
            "drop 1 [0, 512) kv device x2 when_ready\n"
            "decode 1 [520, 521) samples\n");
}

TEST(PlanPeers, AShortOneThatMayGrowNeedsNoRoomHereYet) {
  const View view = view_before_it_runs(100);
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  EXPECT_EQ(b.prefill(view.waiting[0], 1000), 100u);
  EXPECT_EQ(checked(view, b),
            "add 1 [0, 96) kv host x2 after_layer_writes\n"
            "promise 1 64 cells on host\n"
            "prefill 1 [0, 100) samples x2 keeps kv x0 x x0\n");
}

// ---------------------------------------------------------------- while no peer lends

// As above, with so many blocks of a host tier of its own, and nothing lent. The ring passes all of it.
View view_while_peers_refuse(uint32_t host_blocks, uint32_t prompt) {
  View view = view_before_it_runs(prompt);
  set_ring(view, 40);
  set_host(view, host_blocks, host_blocks);
  view.peers.borrowed = 0;
  view.peers.out_of_reach = view.peers.most_borrowed;
  view.peers.peers_refuse = true;
  return view;
}

// Once it is admitted, nothing is asked for any more, and peers count as ready to lend. Other sequences have
// all of both tiers but what was promised to it.
View view_after_its_first_rows(const View& before, uint32_t ready, uint32_t device_cells,
                               uint32_t host_cells) {
  View view = before;
  view.peers.peers_refuse = false;
  view.peers.out_of_reach = 0;
  const SeqView& waiting = before.waiting[0];
  SeqView s = streaming_seq(1, waiting.prompt_tokens, waiting.known_tokens, ready);
  s.max_total_tokens = waiting.max_total_tokens;
  s.promised_cells[index_of(Tier::kDevice)] = device_cells;
  s.promised_cells[index_of(Tier::kHost)] = host_cells;
  view.device.spare_slabs = device_cells;
  view.device.promised[0] = device_cells;
  view.host.spare_slabs = host_cells;
  view.host.promised[0] = host_cells;
  view.waiting.clear();
  view.running = {s};
  return view;
}

// Its promises are by the rule that holds later. Of 640 tokens, 40 blocks, 32 go: the host has 64 cells for
// them.
TEST(PlanPeers, OneThatIsAdmittedWhilePeersRefuseCanGoOnWhenTheyLendAgain) {
  const View before = view_while_peers_refuse(100, 540);
  PlanBuilder b(before);
  ASSERT_TRUE(b.admit(before.waiting[0]));
  EXPECT_EQ(b.prefill(before.waiting[0], 1000), 512u);
  EXPECT_EQ(checked(before, b),
            "add 1 [0, 512) kv host x2 after_layer_writes\n"
            "promise 1 4 cells on device\n"
            "promise 1 64 cells on host\n"
            "prefill 1 [0, 512) x2 keeps kv x0 x x0\n");
  const View after = view_after_its_first_rows(before, 512, 4, 0);
  PlanBuilder c(after);
  EXPECT_EQ(c.prefill(after.running[0], 1000), 28u);
  EXPECT_EQ(checked(after, c),
            "stage 1 [0, 512) kv device x2 before_layer\n"
            "prefill 1 [512, 540) samples\n");
}

// The host has 25 blocks: 22 go, and 18 stay. Whole leaves would be 32, once peers lend, and then go as far
// as there are cells: all others have theirs on the device.
TEST(PlanPeers, WhatTheHostCannotTakeStaysAlsoWhenPeersMayLendAgain) {
  const View before = view_while_peers_refuse(25, 540);
  PlanBuilder b(before);
  ASSERT_TRUE(b.admit(before.waiting[0]));
  EXPECT_EQ(b.prefill(before.waiting[0], 1000), 22 * kViewBlock);
  EXPECT_EQ(checked(before, b),
            "add 1 [0, 352) kv host x2 after_layer_writes\n"
            "promise 1 24 cells on device\n"
            "promise 1 44 cells on host\n"
            "prefill 1 [0, 352) x2 keeps kv x0 x x0\n");
  // It has its first 160 tokens there: ten blocks, and a promise for twelve.
  View after = view_after_its_first_rows(before, 160, 24, 24);
  PlanBuilder c(after);
  EXPECT_EQ(c.prefill(after.running[0], 1000), 192u);
  EXPECT_EQ(checked(after, c),
            "stage 1 [0, 160) kv device x2 before_layer\n"
            "add 1 [160, 352) kv host x2 after_layer_writes\n"
            "prefill 1 [160, 352) x2 keeps kv x0 x x0\n");
  after = view_after_its_first_rows(before, 352, 24, 0);
  PlanBuilder d(after);
  EXPECT_EQ(d.prefill(after.running[0], 1000), 188u);
  EXPECT_EQ(checked(after, d),
            "stage 1 [0, 352) kv device x2 before_layer\n"
            "prefill 1 [352, 540) samples\n");
  // A cell of each group for three blocks of 22 to 32 has come.
  after = view_after_its_first_rows(before, 352, 24, 0);
  set_host(after, 28, 3);
  PlanBuilder e(after);
  EXPECT_EQ(e.prefill(after.running[0], 1000), 3 * kViewBlock);
}

// ---------------------------------------------------------------- what there is

TEST(PlanPeers, WhatMayBeBorrowedCountsAsThere) {
  View view = view_at_peers();
  view.peers.recalled = 10;
  const CellCapacity c = view.capacity();
  EXPECT_EQ(c.groups, 2u);
  EXPECT_EQ(c.device_cells, 40u);
  EXPECT_EQ(c.slower_cells, 0u) << "all of the tier is borrowed, or recalled";
  EXPECT_EQ(c.borrowed_cells, 500u);
  EXPECT_EQ(c.stage_blocks, 32u);
  EXPECT_EQ(c.leaf_blocks, kLeafBlocks);
  view.peers.borrowed = 100;
  EXPECT_EQ(view.capacity().slower_cells, 290u);
  View nothing = make_view(20, 10);
  EXPECT_EQ(nothing.slower_tier(), Tier::kDisk);
  nothing.peers.most_borrowed = 1;
  EXPECT_EQ(nothing.slower_tier(), Tier::kHost) << "though nothing is there yet";
  EXPECT_EQ(nothing.capacity().slower_cells, 0u);
}

TEST(PlanPeers, MemoryThatWasNotLentIsNotCountedOn) {
  View view = view_at_peers();
  const auto borrowed = [&](bool admitted) { return view.capacity(admitted).borrowed_cells; };
  EXPECT_EQ(view.capacity().borrowed_cells, borrowed(true)) << "for no request in particular";
  EXPECT_EQ(borrowed(true), 500u);
  EXPECT_EQ(borrowed(false), 500u);
  // While no peer lends, a new request makes do with what is there; an admitted one keeps its promise.
  view.peers.peers_refuse = true;
  EXPECT_EQ(borrowed(true), 500u);
  EXPECT_EQ(borrowed(false), 400u);
  view.peers.out_of_reach = 100;
  EXPECT_EQ(borrowed(true), 400u);
  EXPECT_EQ(borrowed(false), 400u);
  // Later a peer may lend again: a new request may be admitted for it, a present one is told of what came.
  view.peers.peers_refuse = false;
  EXPECT_EQ(borrowed(true), 400u);
  EXPECT_EQ(borrowed(false), 500u);
  view.peers.out_of_reach = 501;
  EXPECT_EQ(borrowed(true), 0u);
  for (const bool admitted : {false, true}) {
    EXPECT_EQ(view.capacity(admitted).slower_cells, 0u);
    EXPECT_EQ(view.capacity(admitted).device_cells, 40u);
    EXPECT_EQ(view.capacity(admitted).stage_blocks, 32u);
  }
}

TEST(PlanPeers, WhatOneThatStreamsMayStillNeedElsewhere) {
  View view = view_at_peers();
  SeqView& s = view.running[0];
  s.max_total_tokens = 140 * kViewBlock;
  // Of 140 blocks 18 stay, and what goes are whole leaves: 128 blocks of two cells, of which 116 are there.
  EXPECT_EQ(PlanBuilder(view).slower_cells_to_come(s), 24u);
  s.promised_cells[index_of(Tier::kHost)] = 7;
  EXPECT_EQ(PlanBuilder(view).slower_cells_to_come(s), 17u);
  s.promised_cells[index_of(Tier::kHost)] = 70;
  EXPECT_EQ(PlanBuilder(view).slower_cells_to_come(s), 0u);
  view.running = {decoding_seq(2, 20, 30)};
  EXPECT_EQ(PlanBuilder(view).slower_cells_to_come(view.running[0]), 0u) << "it fits on the device";
}

TEST(PlanPeers, BlocksOfLeaves) {
  CacheGeometry g = make_view(1, 1).geometry;
  EXPECT_EQ(g.blocks_per_leaf(), 16u);
  EXPECT_EQ(g.blocks_of_leaves({0, 1}), 16u);
  EXPECT_EQ(g.blocks_of_leaves({0, 256}), 16u);
  EXPECT_EQ(g.blocks_of_leaves({255, 257}), 32u);
  EXPECT_EQ(g.blocks_of_leaves({256, 512}), 16u);
  g.block_tokens = 64;
  EXPECT_EQ(g.blocks_of_leaves({64, 600}), 12u);
  g.block_tokens = 256;
  EXPECT_EQ(g.blocks_of_leaves({256, 512}), 1u);
}

TEST(PlanPeers, APlanSaysWhatItBorrowsAndGivesBack) {
  const View view = view_at_peers();
  PlanBuilder b(view);
  EXPECT_FALSE(b.borrows());
  b.borrow(7);
  b.borrow(2);
  b.give_back(3);
  EXPECT_TRUE(b.borrows());
  const StepPlan plan = b.take();
  EXPECT_EQ(plan.borrow_cells, 9u);
  EXPECT_EQ(plan.return_cells, 3u);
  EXPECT_EQ(to_string(plan), "borrow 9 cells\nreturn 3 cells\n");
}

// ---------------------------------------------------------------- standing still

TEST(StandsStill, ButForWhatAPeerMayStillDo) {
  struct Case {
    uint32_t asked, lent, borrow, give_back;
    bool peers_refuse, stands_still;
  };
  for (const Case& c : {
           Case{0, 0, 0, 0, false, true}, Case{0, 0, 0, 0, true, true},
           Case{1, 0, 0, 0, false, false},                                 // the answer is still to come
           Case{1, 0, 0, 0, true, false}, Case{0, 1, 0, 0, false, false},  // its own comes back
           Case{0, 1, 0, 0, true, true},    // not for one that waits for others besides
           Case{0, 0, 1, 0, false, false},  // it asks
           Case{0, 0, 1, 0, true, true},    // in vain
           Case{0, 0, 0, 1, false, true},   // that is no work
       }) {
    View view = make_view(10, 0);
    view.waiting = {waiting_seq(1, 20)};
    view.peers.most_borrowed = 8;
    view.peers.asked = c.asked;
    view.peers.lent = c.lent;
    view.peers.peers_refuse = c.peers_refuse;
    StepPlan plan;
    plan.borrow_cells = c.borrow;
    plan.return_cells = c.give_back;
    const std::string said = std::to_string(c.asked) + std::to_string(c.lent) + std::to_string(c.borrow) +
                             (c.peers_refuse ? "n" : "");
    EXPECT_EQ(stands_still(view, plan), c.stands_still) << said;
    EXPECT_EQ(check_plan(view, plan).ok(), !c.stands_still) << said;
    view.steps_in_flight = 1;
    EXPECT_FALSE(stands_still(view, plan));
    view.steps_in_flight = 0;
    view.waiting.clear();
    EXPECT_FALSE(stands_still(view, plan)) << "there is no work";
  }
}

TEST(StandsStill, NotWhileItsOwnComesBackToOneThatRuns) {
  View view = make_view(10, 0);
  view.running = {decoding_seq(1, 20, 20)};
  view.peers.lent = 1;
  view.peers.peers_refuse = true;
  EXPECT_TRUE(comes_back(view));
  EXPECT_FALSE(stands_still(view, StepPlan()));
  view.peers.lent = 0;
  EXPECT_FALSE(comes_back(view));
  EXPECT_TRUE(stands_still(view, StepPlan()));
}

}  // namespace
}  // namespace kvasir::test
