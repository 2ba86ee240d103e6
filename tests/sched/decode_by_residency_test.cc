// Which requests decode when some layers are away, and which come back, by hand. Blocks have 16 tokens and
// four cells of 512 bytes. The link takes 1 s for a cell; a step takes as many seconds as the decodes in it
// are to say.
#include "sched/mechanisms/decode_by_residency.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "fakes/layered_views.h"
#include "fakes/plan_checks.h"
#include "plan/plan_checker.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/offload_newest.h"

namespace kvasir::test {
namespace {

constexpr Nanos kSecond = 1'000'000'000;

View slow_view(uint32_t device_free, uint32_t host_free, double decode_s = 0) {
  View view = layered_view(device_free, host_free);
  view.costs.decode_row_s = decode_s;
  view.costs.links[index_of(Tier::kHost)][index_of(Tier::kDevice)] = {0, 1.0 / 512};
  return view;
}

// Two full blocks in groups 1 and 3 on the device, and 2 x 2 = 4 cells on the host.
SeqView half_away(uint64_t id) {
  return layered_seq(id, 20, 40, layers({1, 3}));
}

TEST(CellsAway, AreThoseOfTheTableThatAreNotOnTheDevice) {
  const View view = slow_view(0, 0);
  EXPECT_EQ(cells_away(view, half_away(1)), 4u);
  EXPECT_EQ(link_seconds(view, half_away(1)), 4);
  EXPECT_EQ(cells_away(view, layered_seq(1, 20, 40, {})), 8u);
  EXPECT_EQ(cells_away(view, layered_resident(1, 20, 40)), 0u);
  EXPECT_EQ(link_seconds(view, layered_resident(1, 20, 40)), 0);
  // The latency is the link's once.
  View slower = view;
  slower.costs.links[index_of(Tier::kHost)][index_of(Tier::kDevice)].latency_s = 3;
  EXPECT_EQ(link_seconds(slower, half_away(1)), 7);
  EXPECT_EQ(link_seconds(slower, layered_resident(1, 20, 40)), 0);
}

// ---------------------------------------------------------------- decode_resident

TEST(DecodeResident, ThoseThatAreAllOnTheDevice) {
  View view = slow_view(0, 100);
  view.running = {layered_resident(1, 20, 40), half_away(2), layered_resident(3, 20, 40)};
  PlanBuilder b(view);
  EXPECT_EQ(decode_resident(view, by_arrival(view.running), /*offloads=*/false, b), 0u);
  EXPECT_EQ(checked(view, b), "decode 1 [39, 40) samples\ndecode 3 [39, 40) samples\n");
}

TEST(DecodeResident, WhereABlockIsLackingTheNewestOffloads) {
  // 1 needs a third block, four cells, and none is free. Half of 3's layers are just as many; they are free
  // when they have been copied: 1 waits, and the others go on.
  View view = slow_view(0, 100);
  view.running = {layered_resident(1, 20, 33), layered_resident(2, 20, 40), layered_resident(3, 20, 40)};
  PlanBuilder b(view);
  EXPECT_EQ(offload_newest(view, by_arrival(view.running), 4, b), 4);
  EXPECT_EQ(decode_resident(view, by_arrival(view.running), /*offloads=*/true, b), 0u);
  EXPECT_FALSE(b.has_rows(SeqId{1}));
  EXPECT_EQ(checked(view, b),
            "add 3 [0, 32) kv host x2 now\ndrop 3 [0, 32) kv device x2 when_ready\n"
            "decode 2 [39, 40) samples\ndecode 3 [39, 40) samples\n");
}

TEST(DecodeResident, ForTwoThatWaitTheOtherHalfAsWell) {
  // 1 and 2 need a block each: 8 cells, in two halves of 3.
  View view = slow_view(0, 100);
  view.running = {layered_resident(1, 20, 33), layered_resident(2, 20, 33), layered_resident(3, 20, 40)};
  PlanBuilder b(view);
  EXPECT_EQ(offload_newest(view, by_arrival(view.running), 8, b), 8);
  EXPECT_EQ(decode_resident(view, by_arrival(view.running), /*offloads=*/true, b), 0u);
  EXPECT_EQ(b.coming_cells(), 8);
  EXPECT_FALSE(b.has_rows(SeqId{1}));
  EXPECT_FALSE(b.has_rows(SeqId{2}));
  EXPECT_TRUE(b.has_rows(SeqId{3}));
}

TEST(DecodeResident, WhatIsComingIsWaitedForOnce) {
  // Four cells are on their way: for 1. For 2 the newest offloads.
  View view = slow_view(0, 100);
  view.device.coming[0] = 4;
  view.transfers_in_flight = 1;
  view.running = {layered_resident(1, 20, 33), layered_resident(2, 20, 40), layered_resident(3, 20, 40)};
  PlanBuilder one(view);
  EXPECT_EQ(decode_resident(view, by_arrival(view.running), /*offloads=*/false, one), 0u);
  EXPECT_EQ(checked(view, one), "decode 2 [39, 40) samples\ndecode 3 [39, 40) samples\n");
  view.running[1] = layered_resident(2, 20, 33);
  PlanBuilder two(view);
  EXPECT_EQ(offload_newest(view, by_arrival(view.running), 4, two), 4);
  EXPECT_EQ(decode_resident(view, by_arrival(view.running), /*offloads=*/true, two), 0u);
  EXPECT_EQ(checked(view, two),
            "add 3 [0, 32) kv host x2 now\ndrop 3 [0, 32) kv device x2 when_ready\n"
            "decode 3 [39, 40) samples\n");
}

TEST(DecodeResident, WithNothingToOffloadTheLastIsPreempted) {
  // The host is full: 3 gives its 12 cells up, and 1 has its block.
  View view = slow_view(0, 0);
  view.running = {layered_resident(1, 20, 33), layered_resident(2, 20, 40), layered_resident(3, 20, 40)};
  PlanBuilder b(view);
  EXPECT_EQ(decode_resident(view, by_arrival(view.running), /*offloads=*/false, b), 1u);
  EXPECT_EQ(checked(view, b),
            "preempt 3\ndrop_all 3 kv device\n"
            "decode 1 [32, 33) samples\ndecode 2 [39, 40) samples\n");
}

TEST(DecodeResident, ItIsPreemptedToTheHostWhereThatHasRoomForAllOfIt) {
  // Of 2 nothing is offloaded layer by layer: it has 15 tokens, less than a block. Its 4 cells go to the
  // host, and 1 waits for them.
  View view = slow_view(0, 4);
  view.running = {layered_resident(1, 20, 33), layered_resident(2, 10, 16)};
  PlanBuilder b(view);
  EXPECT_EQ(decode_resident(view, by_arrival(view.running), /*offloads=*/false, b), 1u);
  EXPECT_EQ(checked(view, b),
            "preempt 2\nadd 2 [0, 15) kv host x4 now\ndrop 2 [0, 15) kv device x4 when_ready\n");
}

TEST(DecodeResident, TheFirstIsNeverPreempted) {
  View view = slow_view(0, 0);
  view.transfers_in_flight = 1;
  view.running = {layered_resident(1, 20, 33)};
  PlanBuilder b(view);
  EXPECT_EQ(decode_resident(view, by_arrival(view.running), /*offloads=*/false, b), 0u);
  EXPECT_EQ(checked(view, b), "");
}

// ---------------------------------------------------------------- layers come back

// 9 decodes for `decode_s` seconds, in which the link brings that many cells; 1 and 2 have four cells away
// each.
class ComeBack : public testing::Test {
 protected:
  std::string plan(double decode_s, int64_t spare, double link_share = 1) {
    View view = slow_view(100, 100, decode_s);
    view.running = {layered_resident(9, 20, 40), half_away(2), half_away(1)};
    PlanBuilder b(view);
    const auto running = by_arrival(view.running);
    decode_resident(view, running, /*offloads=*/false, b);
    AwayOptions options;
    options.spare_cells = spare;
    options.link_share = link_share;
    decode_away(view, running, options, b);
    const StepPlan p = b.take();
    EXPECT_TRUE(check_plan(view, p).ok());
    groups_.clear();
    for (const CopyChange& c : p.copies) groups_.push_back(c.layers);
    return to_string(p);
  }
  std::vector<LayerSet> groups_;
};

constexpr const char* kDecode9 = "decode 9 [39, 40) samples\n";

TEST_F(ComeBack, TheFirstToArriveFirst) {
  // 5 s: four cells for 1; of 2, one of four is not a group of two.
  EXPECT_EQ(plan(5, 100), std::string("add 1 [0, 32) kv device x2 now\n") + kDecode9);
  EXPECT_EQ(groups_[0], layers({0, 2}));
}

TEST_F(ComeBack, AsManyAsTheLinkHasTimeFor) {
  // 8 s: both. 6 s: 1, and half of 2's time is left, for the second of its two groups. 2 s: half of 1.
  EXPECT_EQ(plan(8, 100),
            std::string("add 1 [0, 32) kv device x2 now\nadd 2 [0, 32) kv device x2 now\n") + kDecode9);
  EXPECT_EQ(plan(6, 100),
            std::string("add 1 [0, 32) kv device x2 now\nadd 2 [0, 32) kv device x1 now\n") + kDecode9);
  EXPECT_EQ(groups_[1], layers({2}));
  EXPECT_EQ(plan(2, 100), std::string("add 1 [0, 32) kv device x1 now\n") + kDecode9);
  EXPECT_EQ(plan(1, 100), kDecode9);
  // Twice the step's time, or half of it.
  EXPECT_EQ(plan(4, 100, 2), plan(8, 100));
  EXPECT_EQ(plan(4, 100, 0.5), plan(2, 100));
  EXPECT_EQ(plan(4, 100, 0), kDecode9);
}

TEST_F(ComeBack, AsManyAsThereAreSpareCellsFor) {
  // Beside its four cells each has four to spare: for the block that it begins in the next stage.
  EXPECT_EQ(plan(100, 16), plan(8, 100));
  // One, and three are none of a whole group more than one.
  const auto served = [](const std::string& id) {
    return std::pair("stage " + id + " [0, 39) kv device x2 before_layer\n",
                     "decode " + id + " [39, 40) samples\n");
  };
  const auto [stage2, decode2] = served("2");
  const auto [stage1, decode1] = served("1");
  EXPECT_EQ(plan(100, 8), "add 1 [0, 32) kv device x2 now\n" + stage2 + kDecode9 + decode2);
  // While some of them come it waits for the others.
  EXPECT_EQ(plan(100, 7), std::string("add 1 [0, 32) kv device x1 now\n") + kDecode9);
  // No sequence goes before another, and none takes the room that another lacks.
  for (int64_t spare : {5, 0, -5}) EXPECT_EQ(plan(100, spare), stage1 + kDecode9 + decode1) << spare;
  // Where the link has time for him: four cells.
  EXPECT_EQ(plan(4, 0), stage1 + kDecode9 + decode1);
  EXPECT_EQ(plan(3, 0), kDecode9);
}

TEST(DecodeAway, NoneOvertakes) {
  // Of 1 a group is five cells, of 2 two, and either begins a block, four cells, in the next stage. Eight are
  // spare: not enough for one group of 1's beside that, and 2 waits behind it.
  View view = slow_view(100, 100, 100);
  view.running = {layered_resident(9, 20, 40), layered_seq(1, 20, 88, layers({1, 3})), half_away(2)};
  const auto plan = [&](int64_t spare) {
    PlanBuilder b(view);
    EXPECT_TRUE(b.decode(view.running[0]));
    decode_away(view, by_arrival(view.running), {.spare_cells = spare}, b);
    return checked(view, b);
  };
  EXPECT_EQ(plan(8), "stage 1 [0, 87) kv device x2 before_layer\n" + std::string(kDecode9) +
                         "decode 1 [87, 88) samples\n");
  EXPECT_EQ(plan(9), "add 1 [0, 80) kv device x1 now\n" + std::string(kDecode9));
}

TEST(DecodeAway, NonePreemptedByThePlanComesBack) {
  View view = slow_view(100, 100, 100);
  view.running = {layered_resident(9, 20, 40), half_away(1)};
  PlanBuilder b(view);
  b.preempt_and_keep(view.running[1]);
  ASSERT_TRUE(b.decode(view.running[0]));
  decode_away(view, by_arrival(view.running), {.spare_cells = 100}, b);
  EXPECT_EQ(checked(view, b), "preempt 1\ndecode 9 [39, 40) samples\n");
}

// ---------------------------------------------------------------- the urgent

// At 100 s, with gaps of `tbt_s` allowed, of which `since_s` have passed.
SeqView bounded(uint64_t id, uint32_t tbt_s, uint32_t since_s) {
  SeqView s = half_away(id);
  s.slo.tbt_ms = tbt_s * 1000;
  s.first_token_time = 1 * kSecond;
  s.last_token_time = static_cast<Nanos>(100 - since_s) * kSecond;
  return s;
}

// Nothing is spare, so that nothing comes back. With gaps of 10 s, 7 s of which have passed, 3 are left.
class Urgent : public testing::Test {
 protected:
  std::string plan(double decode_s, double urgent_share, std::vector<SeqView> away) {
    View view = slow_view(100, 100, decode_s);
    view.now = 100 * kSecond;
    view.running = {layered_resident(9, 20, 40)};
    for (const SeqView& s : away) view.running.push_back(s);
    PlanBuilder b(view);
    const auto running = by_arrival(view.running);
    decode_resident(view, running, /*offloads=*/false, b);
    AwayOptions options;
    options.urgent_share = urgent_share;
    decode_away(view, running, options, b);
    return checked(view, b);
  }
};

std::string staged(uint64_t id) {
  return "stage " + std::to_string(id) + " [0, 39) kv device x2 before_layer\n";
}
std::string decoded(uint64_t id) {
  return "decode " + std::to_string(id) + " [39, 40) samples\n";
}

TEST_F(Urgent, TheLeastTimeLeftIsStagedFirst) {
  // The link has 8 s, for two of four cells each.
  EXPECT_EQ(plan(8, 0.3, {bounded(1, 10, 7), bounded(2, 10, 9)}),
            staged(2) + staged(1) + decoded(9) + decoded(2) + decoded(1));
  // It has time for one of them: 2.
  EXPECT_EQ(plan(4, 0.3, {bounded(1, 10, 7), bounded(2, 10, 9)}), staged(2) + decoded(9) + decoded(2));
  EXPECT_EQ(plan(3, 0.3, {bounded(1, 10, 7), bounded(2, 10, 9)}), decoded(9));
}

TEST_F(Urgent, OnlyTheFirstOtherIsStaged) {
  // 4 of 10 s are left to 3, and 4 has missed its bound by 1 s. 1, 2 and 5 have none; 1 is the first.
  const std::string first = staged(1) + decoded(9) + decoded(1);
  EXPECT_EQ(plan(100, 0.3, {half_away(1), half_away(2), bounded(3, 10, 6)}), first);
  EXPECT_EQ(plan(100, 0.4, {half_away(1), half_away(2), bounded(3, 10, 6)}),
            staged(3) + staged(1) + decoded(9) + decoded(3) + decoded(1));
  EXPECT_EQ(plan(100, 0.3, {half_away(1), bounded(4, 10, 11)}), first);
  EXPECT_EQ(plan(100, 0.9, {half_away(1), half_away(5)}), first);
}

TEST(DecodeAway, ARequestThatNeedsMoreOfTheLinkThanAStepGoesOnTheCreditOfWaiting) {
  // Four cells take the link 4 s, and the step computes for 3. After 200 s it has a credit of 4.
  for (const auto& [waited, goes] : {std::pair{199, false}, {200, true}}) {
    View view = slow_view(100, 100, 3);
    view.now = 1000 * kSecond;
    SeqView away = half_away(1);
    away.last_token_time = (1000 - waited) * kSecond;
    view.running = {layered_resident(9, 20, 40), away};
    PlanBuilder b(view);
    ASSERT_TRUE(b.decode(view.running[0]));
    decode_away(view, by_arrival(view.running), {}, b);
    EXPECT_EQ(checked(view, b), goes ? staged(1) + decoded(9) + decoded(1) : decoded(9));
  }
}

// ---------------------------------------------------------------- an empty step

TEST(DecodeAway, AnEmptyStepServesOneAnyway) {
  // Nothing is on the device, nothing is spare, the link has no time: the first to arrive goes.
  View view = slow_view(0, 100, 5);
  view.running = {half_away(2), half_away(1)};
  PlanBuilder b(view);
  decode_away(view, by_arrival(view.running), {}, b);
  EXPECT_EQ(checked(view, b), staged(1) + decoded(1));
}

TEST(DecodeAway, ASequenceThatCannotRunIsPassedOver) {
  View view = slow_view(0, 100, 5);
  view.running = {half_away(1), half_away(2), half_away(3)};
  view.running[0].stalled = true;
  PlanBuilder b(view);
  decode_away(view, by_arrival(view.running), {}, b);
  EXPECT_EQ(checked(view, b), staged(2) + decoded(2));
}

TEST(DecodeAway, OfAnEmptyStepOneComesBackBeyondTheLinksTime) {
  View view = slow_view(100, 100, 5);
  view.running = {half_away(1), half_away(2)};
  PlanBuilder b(view);
  decode_away(view, by_arrival(view.running), {.spare_cells = 100}, b);
  EXPECT_EQ(checked(view, b), "add 1 [0, 32) kv device x2 now\n");
}

}  // namespace
}  // namespace kvasir::test
