// DistKV-LLM: how much is borrowed when, what is spilt to peers and what is brought home. Blocks have 16
// tokens and two cells; a leaf of attention has 16 blocks.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/random.h"
#include "fakes/plan_checks.h"
#include "sched/mechanisms/borrow_ahead.h"
#include "sched/mechanisms/break_standstill.h"
#include "sched/mechanisms/spill_to_peers.h"
#include "sched/mechanisms/stream_or_ask.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

// ---------------------------------------------------------------- borrow_ahead

struct Borrowing {
  uint32_t borrow = 0;
  uint32_t give_back = 0;
  friend bool operator==(const Borrowing&, const Borrowing&) = default;
};
Borrowing borrowing_of(const View& view, const BorrowAhead& rule) {
  PlanBuilder builder(view);
  borrow_ahead(view, rule, builder);
  const StepPlan plan = builder.take();
  return {plan.borrow_cells, plan.return_cells};
}

// Sequence 1 decodes at 40 tokens, in three blocks, and may come to 120: five blocks more, ten cells. On the
// device so many blocks are free; the host tier has so many cells free, all of them borrowed.
View one_that_grows(uint32_t free_blocks, uint32_t there) {
  View view = make_view(10, free_blocks);
  view.running = {decoding_seq(1, 20, 40)};
  view.host.per_slab[0] = 1;
  view.host.slabs = view.host.spare_slabs = there;
  view.peers.most_borrowed = 100;
  view.peers.borrowed = there;
  return view;
}

TEST(BorrowAhead, CellsNeededSoonAreThoseOfTheTokensAheadUpToTheLongest) {
  View view = one_that_grows(1, 0);
  EXPECT_EQ(cells_needed_soon(view, {0}), 0u);
  EXPECT_EQ(cells_needed_soon(view, {8}), 0u) << "48 tokens fill three blocks";
  EXPECT_EQ(cells_needed_soon(view, {9}), 2u);
  EXPECT_EQ(cells_needed_soon(view, {32}), 4u);
  EXPECT_EQ(cells_needed_soon(view, {1000}), 10u);
  view.running[0].promised_cells[0] = 4;
  EXPECT_EQ(cells_needed_soon(view, {1000}), 6u) << "two blocks are promised to it";
  view.running.push_back(decoding_seq(2, 20, 30));
  EXPECT_EQ(cells_needed_soon(view, {20}), 4u) << "both come to 60 and 50 tokens";
  view.running.pop_back();
  view.waiting = {waiting_seq(3, 50)};
  EXPECT_EQ(cells_needed_soon(view, {1000}), 6u) << "a waiting sequence needs none yet";
}

TEST(BorrowAhead, BorrowsWhatIsLacking) {
  struct Case {
    uint32_t free_blocks, there, asked, most;
    uint32_t borrowed;
    const char* why;
  };
  for (const Case& c : {
           Case{0, 0, 0, 100, 10, "all ten cells"},
           Case{1, 0, 0, 100, 8, "two are free on the device"},
           Case{1, 3, 0, 100, 5, "three are borrowed already"},
           Case{1, 3, 4, 100, 1, "and four asked for"},
           Case{1, 3, 5, 100, 0, "that is enough"},
           Case{1, 3, 50, 100, 0, "more than enough"},
           Case{5, 0, 0, 100, 0, "the device has room for all"},
           Case{0, 0, 0, 6, 6, "no more than it may"},
           Case{0, 0, 0, 0, 0, "it borrows nothing"},
       }) {
    View view = one_that_grows(c.free_blocks, c.there);
    view.peers.asked = c.asked;
    view.peers.most_borrowed = c.most;
    EXPECT_EQ(borrowing_of(view, {1000}), (Borrowing{c.borrowed, 0})) << c.why;
  }
}

TEST(BorrowAhead, TheFirstThatWaitsHasItsPlaceBeforeItRuns) {
  View view = make_view(10, 10);
  set_ring(view, 40);
  view.peers.most_borrowed = 200;
  // Up to 600 tokens, 38 blocks: eight may stay, and what goes are two leaves of 16.
  view.waiting = {waiting_seq(1, 500), waiting_seq(2, 500)};
  EXPECT_EQ(borrowing_of(view, {256}), (Borrowing{64, 0}));
  view.peers.asked = 60;
  EXPECT_EQ(borrowing_of(view, {256}), (Borrowing{4, 0}));
  view.waiting[0].max_total_tokens = 150;
  view.peers.asked = 0;
  EXPECT_EQ(borrowing_of(view, {256}), (Borrowing{0, 0})) << "it has room on the device";
}

TEST(BorrowAhead, GivesBackWhatIsOfNoUseAndDoesNotAskForItAgain) {
  // Ten cells are needed soon; with none free here all of them are wanted.
  EXPECT_EQ(borrowing_of(one_that_grows(0, 9), {1000}), (Borrowing{1, 0}));
  for (uint32_t there = 10; there <= 20; ++there) {
    EXPECT_EQ(borrowing_of(one_that_grows(0, there), {1000}), (Borrowing{0, 0})) << there;
  }
  EXPECT_EQ(borrowing_of(one_that_grows(0, 21), {1000}), (Borrowing{0, 1}));
  EXPECT_EQ(borrowing_of(one_that_grows(0, 50), {1000}), (Borrowing{0, 30}));
  View view = one_that_grows(0, 50);
  view.peers.borrowed = 12;  // the others are its own
  EXPECT_EQ(borrowing_of(view, {1000}), (Borrowing{0, 12}));
  view.peers.asked = 1;
  EXPECT_EQ(borrowing_of(view, {1000}), (Borrowing{0, 0})) << "what is asked for may still come";
  // With room on the device as much stays as is needed soon, twice.
  EXPECT_EQ(borrowing_of(one_that_grows(5, 20), {1000}), (Borrowing{0, 0}));
  EXPECT_EQ(borrowing_of(one_that_grows(5, 23), {1000}), (Borrowing{0, 3}));
  view = one_that_grows(5, 23);
  view.peers.most_borrowed = 0;
  EXPECT_EQ(borrowing_of(view, {1000}), (Borrowing{0, 0}));
}

// ---------------------------------------------------------------- spill_to_peers

// Two that decode on a device of 200 blocks: the first with 1,000 tokens, of which two leaves may go, and the
// second with 600, of which one may.
View two_long_ones() {
  View view = make_view(200, 10);
  set_host(view, 200, 200);
  set_ring(view, 64);
  view.peers.most_borrowed = view.peers.borrowed = 400;
  view.transfers_in_flight = 1;  // so that no plan need do anything
  view.running = {decoding_seq(1, 20, 600), decoding_seq(2, 20, 1000)};
  for (SeqView& s : view.running) s.max_total_tokens = s.known_tokens + 100;
  return view;
}
std::string leaf_moves(uint64_t id, uint32_t begin) {
  const std::string tokens = " [" + std::to_string(begin) + ", " + std::to_string(begin + 256) + ") kv ";
  return "add " + std::to_string(id) + tokens + "host x2 now\ndrop " + std::to_string(id) + tokens +
         "device x2 when_ready\n";
}
struct Spilt {
  uint32_t coming;
  std::string plan;
};
Spilt spilt(const View& view, uint32_t cells) {
  PlanBuilder builder(view);
  const uint32_t coming = spill_to_peers(view, cells, builder);
  return {coming, checked(view, builder)};
}

TEST(SpillToPeers, TheOldestLeavesOfTheLongestGoFirstAndTheNewestStay) {
  const View view = two_long_ones();
  EXPECT_EQ(spilt(view, 1).plan, leaf_moves(2, 0));
  EXPECT_EQ(spilt(view, 1).coming, 32u);
  EXPECT_EQ(spilt(view, 32).plan, leaf_moves(2, 0));
  EXPECT_EQ(spilt(view, 33).plan, leaf_moves(2, 0) + leaf_moves(2, 256));
  EXPECT_EQ(spilt(view, 65).plan, leaf_moves(2, 0) + leaf_moves(2, 256) + leaf_moves(1, 0));
  const Spilt all = spilt(view, 10000);
  EXPECT_EQ(all.plan, leaf_moves(2, 0) + leaf_moves(2, 256) + leaf_moves(1, 0));
  EXPECT_EQ(all.coming, 96u) << "the newest leaf of each stays";
}

TEST(SpillToPeers, GoesOnWhereItStopped) {
  View view = two_long_ones();
  SeqView& s = view.running[1];
  s.resident_blocks -= 16;
  s.first_device_block = 16;
  s.peer_blocks = 16;
  s.device_groups = {};
  set_cells(s, Tier::kDevice, s.resident_blocks * 2);
  set_cells(s, Tier::kHost, 32);
  EXPECT_EQ(spilt(view, 10000).plan, leaf_moves(2, 256) + leaf_moves(1, 0));
  s.leaving_cells = 3;
  EXPECT_EQ(spilt(view, 10000).plan, leaf_moves(1, 0)) << "of that one some leaves still";
}

// Of what had gone, some cells were called back and are on the device again, in one layer group.
TEST(SpillToPeers, WhatCameHomeInPartGoesAgain) {
  View view = two_long_ones();
  SeqView& s = view.running[1];
  s.resident_blocks = s.blocks - 32;
  s.first_device_block = 5;
  s.device_groups = {};
  set_cells(s, Tier::kDevice, s.resident_blocks * 2 + 3);
  set_cells(s, Tier::kHost, 61);
  EXPECT_EQ(spilt(view, 10000).plan, leaf_moves(1, 0) + leaf_moves(2, 0) + leaf_moves(2, 256));
  s.first_device_block = s.blocks;
  EXPECT_EQ(spilt(view, 10000).plan, leaf_moves(1, 0));
}

TEST(SpillToPeers, NeverOfOneThatStreamsNorOfOneThatCouldNotRun) {
  const auto left_out = [](const char* why, const auto& change) {
    View view = two_long_ones();
    change(view, view.running[1]);
    EXPECT_EQ(spilt(view, 10000).plan, leaf_moves(1, 0)) << why;
  };
  left_out("it streams", [](View&, SeqView& s) { s.max_total_tokens = 4000; });
  left_out("it is stalled", [](View&, SeqView& s) { s.stalled = true; });
  left_out("it has cells dropped", [](View&, SeqView& s) {
    s.dropped = {0, 16};
    s.dropped_cells = 1;
    s.dropped_end_group = 1;
  });
  View view = two_long_ones();
  set_ring(view, 31);
  EXPECT_EQ(spilt(view, 10000).coming, 0u) << "leaves that part could not be staged";
  view = two_long_ones();
  PlanBuilder builder(view);
  builder.preempt_and_drop(view.running[1]);
  EXPECT_EQ(spill_to_peers(view, 10000, builder), 32u) << "one is preempted";
}

TEST(SpillToPeers, EndsWhereTheRoomThereEnds) {
  View view = two_long_ones();
  view.host.spare_slabs = 63;
  const Spilt some = spilt(view, 10000);
  EXPECT_EQ(some.coming, 32u);
  EXPECT_EQ(some.plan, leaf_moves(2, 0));
}

// ---------------------------------------------------------------- stream_or_ask

// A row attends to a position in a microsecond; K and V of a token, and a query, have 1,000 bytes. Of 2,048
// rows, all at once: 2048 x 2049 / 2 us. In two chunks of 1,024 the first takes 1024 x 1025 / 2 us or a
// thousandth of a second for each 1,000 bytes, whichever is more, and the second has four leaves, one peak.
StreamOrAsk on_network(double bytes_per_s) {
  StreamOrAsk rule;
  rule.pair_s = 1e-6;
  rule.kv_bytes = rule.query_bytes = 1000;
  rule.bytes_per_s = bytes_per_s;
  rule.step_rows = 512;
  return rule;
}

TEST(StreamOrAsk, WhatChunksTake) {
  const StreamOrAsk fast = on_network(1e9);
  EXPECT_NEAR(fast.seconds(2048, 2048), 2.098176, 1e-9);
  EXPECT_NEAR(fast.seconds(2048, 1024), 0.5248 + (2e3 * 1024 / 1e9 + 1.048576), 1e-9);
  EXPECT_NEAR(fast.seconds(2048, 512),
              0.131328 + (0.001024 + 0.262144) + (0.001024 + 0.524288) + (0.001536 + 0.786432), 1e-9);
  EXPECT_NEAR(fast.seconds(1500, 1024), 0.5248 + (2e3 * 476 / 1e9 + 1e-6 * 476 * 1024), 1e-9);
  const StreamOrAsk slow = on_network(1e6);
  EXPECT_NEAR(slow.seconds(2048, 2048), 2.098176, 1e-9) << "K and V take 2.048 beside it";
  EXPECT_NEAR(slow.seconds(2048, 1024), 1.024 + (1.024 + 1.048576), 1e-9) << "fetched: half the bytes";
  EXPECT_NEAR(on_network(1e5).seconds(2048, 2048), 20.48, 1e-9) << "K and V go out";
}

TEST(StreamOrAsk, AsksOnAFastNetworkAndStreamsOnASlowOne) {
  EXPECT_EQ(on_network(1e9).chunk(2048), 1024u);
  EXPECT_EQ(on_network(1e6).chunk(2048), 2048u);
  StreamOrAsk wide = on_network(1e9);
  wide.query_bytes = 1e6;  // 2.048 s for 1,024 queries and results
  wide.kv_bytes = 1e6;
  EXPECT_EQ(wide.chunk(2048), 2048u);
  StreamOrAsk rule = on_network(1e9);
  rule.step_rows = 1025;
  EXPECT_EQ(rule.chunk(2048), 2048u) << "half of it does not fill the device";
  // 768, 768 and 564 rows take 1.76 s, 1,280 and 820 take 1.87.
  EXPECT_EQ(on_network(1e9).chunk(2100), 768u) << "whole leaves";
}

// Where a step takes 600 rows of 2,048, all at once is no choice. On a slow network chunks of 600 take 4.42 s
// and those of 512 take 5.16; on a fast one 1.711 and 1.708.
TEST(StreamOrAsk, ChoosesAmongWhatAStepCanTake) {
  StreamOrAsk slow = on_network(1e6);
  slow.most_rows = 600;
  EXPECT_EQ(slow.chunk(2048), 600u);
  EXPECT_NEAR(slow.seconds(2048, 600), 0.6 + 0.96 + 1.92 + 0.9424, 1e-9);
  StreamOrAsk fast = on_network(1e9);
  fast.most_rows = 600;
  EXPECT_EQ(fast.chunk(2048), 512u);
  fast.most_rows = 1100;
  EXPECT_EQ(fast.chunk(2048), 1024u);
  fast.most_rows = 2048;
  EXPECT_EQ(fast.chunk(2048), 1024u);
}

// Of 16,500 tokens nearly all go: half at once on a network that costs next to nothing.
TEST(StreamOrAsk, ThePolicyRunsLongPromptsByIt) {
  View view = make_view(10, 10);
  set_host(view, 2100, 2100);
  set_ring(view, 2000);
  view.limits.max_num_batched_tokens = 20'000;
  view.peers.most_borrowed = view.peers.borrowed = 4200;
  view.costs.pair_s = 1e-6;
  view.waiting = {waiting_seq(1, 16'500)};
  view.waiting[0].max_total_tokens = 16'600;
  EXPECT_NE(plan_of("distkv:network=100000", view).find("[0, 8448)"), std::string::npos)
      << plan_of("distkv:network=100000", view);
  EXPECT_EQ(plan_of("distkv:network=0.000001", view), plan_of("distkv", view));
  EXPECT_EQ(plan_of("distkv", view).find("[0, 8448)"), std::string::npos);
  // At 10 kB/s K and V of all take 105 s, and attention 136; halves take 105 + 68. A ring of 800 blocks
  // passes 12,815 rows, and these and the rest take 82 + 82 + 47.
  EXPECT_EQ(plan_of("distkv:network=0.00001", view), plan_of("distkv", view));
  set_ring(view, 800);
  EXPECT_NE(plan_of("distkv:network=0.00001", view).find("[0, 8448)"), std::string::npos)
      << plan_of("distkv:network=0.00001", view);
}

// ---------------------------------------------------------------- bring_home

// Sequence 2 of those, with its two oldest leaves at peers.
View with_leaves_at_peers() {
  View view = two_long_ones();
  SeqView& s = view.running[1];
  s.resident_blocks -= 32;
  s.peer_blocks = 32;
  s.device_groups = {};
  set_cells(s, Tier::kDevice, s.resident_blocks * 2);
  set_cells(s, Tier::kHost, 64);
  view.peers.recalled = 5;
  view.peers.borrowed = 395;
  return view;
}
std::string brought_home(const View& view, uint32_t spare) {
  PlanBuilder builder(view);
  bring_home(view, spare, builder);
  return checked(view, builder);
}

TEST(BringHome, WhatIsRecalledComesToTheDevice) {
  View view = with_leaves_at_peers();
  view.peers.in_recalled = {{SeqId{2}, 2, 3, 1}, {SeqId{2}, 9, 2, 0}};
  const auto lines = [](const std::string& plan) { return std::count(plan.begin(), plan.end(), '\n'); };
  const std::string both = brought_home(view, 0);
  EXPECT_EQ(lines(both), 4) << both;
  EXPECT_NE(both.find("add 2 [32, 80) kv device"), std::string::npos) << both;
  EXPECT_NE(both.find("drop 2 [144, 176) kv host"), std::string::npos) << both;
  // Twenty cells are free here.
  const std::string one = brought_home(view, 17);
  EXPECT_EQ(lines(one), 2) << one;
  EXPECT_NE(one.find("add 2 [32, 80) kv device"), std::string::npos) << "three cells of room";
  const std::string other = brought_home(view, 18);
  EXPECT_NE(other.find("add 2 [144, 176) kv device"), std::string::npos) << "two cells";
  EXPECT_EQ(lines(other), 2) << other;
  EXPECT_EQ(brought_home(view, 19), "");
}

TEST(BringHome, NotOfOneThatStreamsWaitsOrIsOnItsWay) {
  View view = with_leaves_at_peers();
  view.peers.in_recalled = {{SeqId{2}, 2, 3, 1}};
  EXPECT_NE(brought_home(view, 0), "");
  view.running[1].transfers = 1;
  EXPECT_EQ(brought_home(view, 0), "");
  view.running[1].transfers = 0;
  view.running[1].max_total_tokens = 4000;
  EXPECT_EQ(brought_home(view, 0), "") << "it streams";
  view = with_leaves_at_peers();
  view.peers.in_recalled = {{SeqId{7}, 2, 3, 1}};
  EXPECT_EQ(brought_home(view, 0), "") << "it does not run";
}

// A leaf of which a block comes home is staged from then on: more of them than the ring passes would keep the
// sequence from ever running again.
TEST(BringHome, OnlyWhatLeavesTheSequenceAbleToRun) {
  View view = with_leaves_at_peers();
  view.peers.in_recalled = {{SeqId{2}, 2, 1, 1}, {SeqId{2}, 20, 1, 1}};
  for (uint32_t ring : {32u, 31u, 16u, 15u}) {
    set_ring(view, ring);
    PlanBuilder builder(view);
    bring_home(view, 0, builder);
    EXPECT_TRUE(builder.decode(view.running[1])) << ring;
    EXPECT_EQ(builder.take().copies.size(), (ring >= 32 ? 4u : (ring >= 16 ? 2u : 0u)) + 1) << ring;
  }
}

// ---------------------------------------------------------------- standing still

TEST(StandsStill, ButForWhatAPeerMayStillDo) {
  View view = make_view(3, 0);
  view.running = {decoding_seq(1, 20, 49)};  // it lacks a block
  view.peers.most_borrowed = 8;
  const auto still = [&](uint32_t borrow) {
    PlanBuilder builder(view);
    builder.borrow(borrow);
    return stands_still(view, builder);
  };
  EXPECT_TRUE(still(0));
  EXPECT_FALSE(still(1));
  view.peers.peers_refuse = true;
  EXPECT_TRUE(still(1));
  view.peers.asked = 1;
  EXPECT_TRUE(still(0)) << "it will be refused, too";
  view.peers.peers_refuse = false;
  EXPECT_FALSE(still(0));
  view.peers.asked = 0;
  view.peers.lent = 1;
  EXPECT_FALSE(still(0));
}

// ---------------------------------------------------------------- the policy

TEST(DistkvPolicy, WithoutPeersItIsVllm) {
  View view = make_view(20, 0);
  view.running = {decoding_seq(3, 20, 30), decoding_seq(1, 20, 33), decoding_seq(2, 20, 49)};
  EXPECT_EQ(plan_of("distkv", view), plan_of("vllm", view));
  View fresh = make_view(20, 20);
  fresh.waiting = {waiting_seq(1, 50), waiting_seq(2, 70)};
  EXPECT_EQ(plan_of("distkv", fresh), plan_of("vllm", fresh));
}

TEST(DistkvPolicy, SpillsBeforeTheDeviceIsFullAndIfItIsToldTo) {
  View view = two_long_ones();
  const auto has = [&](const char* name, const char* what) {
    return plan_of(name, view).find(what) != std::string::npos;
  };
  // The two may grow by 100 tokens each, 13 blocks; ten are free.
  EXPECT_TRUE(has("distkv", "add 2 [0, 256) kv host x2 now"));
  EXPECT_TRUE(has("distkv", "decode 2"));
  EXPECT_FALSE(has("distkv:spill=off", "add "));
  EXPECT_FALSE(has("distkv:ahead=16", "add ")) << "for that there is room";
  view.device.coming[0] = 6;
  EXPECT_FALSE(has("distkv", "add ")) << "what is coming is enough";
}

TEST(DistkvPolicy, WhatItPlansAtRandomTheCheckerAccepts) {
  Random random(11);
  const auto under = [&](uint64_t n) { return static_cast<uint32_t>(random.below(n)); };
  const auto policy = make_policy("distkv:ahead=300").value();
  uint32_t spills = 0, home = 0, borrows = 0, returns = 0;
  for (int round = 0; round < 4000; ++round) {
    View view = make_view(180, 0);
    set_ring(view, 32 + under(60));
    view.steps_in_flight = under(2);
    uint32_t held = 0, there = 0;
    const uint32_t running = 1 + under(3);
    view.peers.most_borrowed = 900;
    for (uint64_t id = 1; id <= running; ++id) {
      const uint32_t known = 300 + under(600);
      SeqView s = decoding_seq(id, 20, known);
      s.max_total_tokens = known + under(200);
      const uint32_t leaves = under((known - 1) / 256);
      if (leaves > 0 && random.unit() < 0.6) {
        s.resident_blocks -= 16 * leaves;
        s.peer_blocks = 16 * leaves;
        s.device_groups = {};
        set_cells(s, Tier::kDevice, 2 * s.resident_blocks);
        set_cells(s, Tier::kHost, 32 * leaves);
        if (random.unit() < 0.3) {
          view.peers.in_recalled.push_back({s.id, under(16 * leaves - 1), 1 + under(2), under(2)});
          view.peers.recalled += view.peers.in_recalled.back().blocks;
        }
      }
      s.transfers = random.unit() < 0.2 ? 1 : 0;
      view.transfers_in_flight += s.transfers;
      held += 2 * s.resident_blocks;
      there += 2 * s.peer_blocks;
      view.running.push_back(s);
    }
    view.device.spare_slabs = std::min(view.device.slabs - std::min(view.device.slabs, held), under(60));
    view.host.per_slab[0] = 1;
    view.host.spare_slabs = random.unit() < 0.5 ? under(100) : under(700);
    view.host.slabs = there + view.host.spare_slabs;
    view.peers.borrowed = view.host.slabs - std::min(view.host.slabs, view.peers.recalled);
    view.peers.asked = random.unit() < 0.3 ? under(50) : 0;
    for (uint64_t id = 10; id < 10 + under(3); ++id) {
      SeqView s = waiting_seq(id, 100 + under(3000));
      s.max_total_tokens = s.prompt_tokens + under(300);
      view.waiting.push_back(s);
    }
    const StepPlan plan = policy->plan(view);
    const Status status = check_plan(view, plan);
    ASSERT_TRUE(status.ok()) << "round " << round << ": " << status.message() << "\n" << to_string(plan);
    for (const CopyChange& c : plan.copies) {
      const bool moves = c.verb == Verb::kAdd && c.trigger == Trigger::kNow;
      spills += moves && c.tier == Tier::kHost ? 1 : 0;
      home += moves && c.tier == Tier::kDevice ? 1 : 0;
    }
    borrows += plan.borrow_cells > 0 ? 1 : 0;
    returns += plan.return_cells > 0 ? 1 : 0;
  }
  EXPECT_GT(spills, 300u);
  EXPECT_GT(home, 100u);
  EXPECT_GT(borrows, 200u);
  EXPECT_GT(returns, 300u);
}

}  // namespace
}  // namespace kvasir::test
