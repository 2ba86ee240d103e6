// Layers of the newest requests leave the device: half of what each retains, then the other half. Blocks have
// 16 tokens and four cells.
#include "sched/mechanisms/offload_newest.h"

#include <gtest/gtest.h>

#include <vector>

#include "fakes/layered_views.h"
#include "plan/plan_checker.h"
#include "sched/mechanisms/decode_or_preempt.h"

namespace kvasir::test {
namespace {

// Three requests with all their layers on the device: two full blocks, of which a half is 2 groups x 2
// blocks = 4 cells, and one that is not full and stays.
class OffloadNewest : public testing::Test {
 protected:
  OffloadNewest() {
    view_.running = {layered_resident(1, 20, 40), layered_resident(2, 20, 40), layered_resident(3, 20, 40)};
  }
  // What comes free, and the plan of it.
  int64_t offload(int64_t cells) {
    PlanBuilder b(view_);
    const int64_t out = offload_newest(view_, by_arrival(view_.running), cells, b);
    coming_ = b.coming_cells();
    plan_ = b.take();
    const Status status = check_plan(view_, plan_);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }
  // Of the plan's changes, which are pairs of a copy and a drop: whose, and which layers.
  void expect_pair(size_t i, uint64_t seq, const LayerSet& which) {
    ASSERT_LT(2 * i + 1, plan_.copies.size());
    const CopyChange& copy = plan_.copies[2 * i];
    const CopyChange& drop = plan_.copies[2 * i + 1];
    EXPECT_EQ(copy,
              (CopyChange{Verb::kAdd, SeqId{seq}, {0, 32}, which, Form::kKv, Tier::kHost, Trigger::kNow}));
    EXPECT_EQ(
        drop,
        (CopyChange{Verb::kDrop, SeqId{seq}, {0, 32}, which, Form::kKv, Tier::kDevice, Trigger::kWhenReady}));
  }

  View view_ = layered_view(0, 100);
  StepPlan plan_;
  int64_t coming_ = 0;
};

// What stays is spread as at admission: 1 and 3.
const LayerSet kHalf = layers({0, 2});
const LayerSet kAll = layers({0, 1, 2, 3});

TEST_F(OffloadNewest, HalfOfTheNewest) {
  EXPECT_EQ(offload(1), 4);
  EXPECT_EQ(plan_.copies.size(), 2u);
  expect_pair(0, 3, kHalf);
  EXPECT_EQ(coming_, 4);
  EXPECT_EQ(offload(4), 4);
  EXPECT_EQ(plan_.copies.size(), 2u);
}

TEST_F(OffloadNewest, ThenAllOfIt) {
  EXPECT_EQ(offload(5), 8);
  EXPECT_EQ(plan_.copies.size(), 2u);
  expect_pair(0, 3, kAll);
  EXPECT_EQ(coming_, 8);
}

TEST_F(OffloadNewest, ThenTheOneBefore) {
  EXPECT_EQ(offload(9), 12);
  EXPECT_EQ(plan_.copies.size(), 4u);
  expect_pair(0, 3, kAll);
  expect_pair(1, 2, kHalf);
}

TEST_F(OffloadNewest, NeverTheFirst) {
  EXPECT_EQ(offload(1000), 16);
  EXPECT_EQ(plan_.copies.size(), 4u);
  for (const CopyChange& c : plan_.copies) EXPECT_NE(c.seq, SeqId{1});
  view_.running.resize(1);
  PlanBuilder b(view_);
  EXPECT_EQ(offload_newest(view_, by_arrival(view_.running), 4, b), 0);
  EXPECT_TRUE(b.take().copies.empty());
}

TEST_F(OffloadNewest, NothingWhereNothingIsLacking) {
  PlanBuilder b(view_);
  EXPECT_EQ(offload_newest(view_, by_arrival(view_.running), 0, b), 0);
  EXPECT_TRUE(b.take().copies.empty());
}

TEST_F(OffloadNewest, HalfOfWhatIsRetained) {
  // Of three groups two leave, and the last of them stays; or all. The fourth is away already.
  view_.running[2] = layered_seq(3, 20, 40, layers({0, 1, 3}));
  EXPECT_EQ(offload(4), 4);
  EXPECT_EQ(plan_.copies.size(), 2u);
  expect_pair(0, 3, layers({0, 1}));
  EXPECT_EQ(offload(5), 6);
  EXPECT_EQ(plan_.copies.size(), 2u);
  expect_pair(0, 3, layers({0, 1, 3}));
  EXPECT_EQ(coming_, 6);
}

TEST_F(OffloadNewest, OneGroupLeavesAtOnce) {
  view_.running[2] = layered_seq(3, 20, 40, layers({2}));
  EXPECT_EQ(offload(1), 2);
  EXPECT_EQ(plan_.copies.size(), 2u);
  expect_pair(0, 3, layers({2}));
  // A sequence that retains only its partly filled block is passed over.
  view_.running[2] = layered_seq(3, 20, 40, {});
  EXPECT_EQ(offload(1), 4);
  expect_pair(0, 2, kHalf);
}

TEST_F(OffloadNewest, WhatLeavesAlreadyIsLeftAlone) {
  view_.running[2].leaving_cells = 4;
  view_.device.coming[0] = 4;
  EXPECT_EQ(offload(8), 8);
  EXPECT_EQ(plan_.copies.size(), 2u);
  expect_pair(0, 2, kAll);
}

TEST_F(OffloadNewest, ASequenceWithRowsOrPreemptedIsLeftAlone) {
  view_.device.spare_slabs = 4;
  PlanBuilder b(view_);
  ASSERT_TRUE(b.decode(view_.running[2]));
  EXPECT_EQ(offload_newest(view_, by_arrival(view_.running), 1, b), 4);
  plan_ = b.take();
  expect_pair(0, 2, kHalf);
  EXPECT_TRUE(check_plan(view_, plan_).ok());

  PlanBuilder c(view_);
  c.preempt_and_keep(view_.running[2]);
  EXPECT_EQ(offload_newest(view_, by_arrival(view_.running), 1, c), 4);
  plan_ = c.take();
  expect_pair(0, 2, kHalf);
}

// ---------------------------------------------------------------- the host

TEST_F(OffloadNewest, AsFarAsTheHostHasRoom) {
  view_.host.spare_slabs = 4;
  EXPECT_EQ(offload(1000), 4);
  EXPECT_EQ(plan_.copies.size(), 2u);
  expect_pair(0, 3, kHalf);
  view_.host.spare_slabs = 3;
  PlanBuilder b(view_);
  EXPECT_EQ(offload_newest(view_, by_arrival(view_.running), 1000, b), 0);
  EXPECT_EQ(b.coming_cells(), 0);
  EXPECT_TRUE(b.take().copies.empty());
}

TEST_F(OffloadNewest, NothingWithoutASlowerTier) {
  view_.host = {};
  PlanBuilder b(view_);
  EXPECT_EQ(offload_newest(view_, by_arrival(view_.running), 4, b), 0);
  EXPECT_TRUE(b.take().copies.empty());
}

TEST_F(OffloadNewest, WhatIsOnAFullHostAlreadyIsOnlyReleased) {
  // It came back from there: its 8 cells of full blocks are on both tiers.
  view_.host.spare_slabs = 0;
  set_cells(view_.running[2], Tier::kHost, 8);
  EXPECT_EQ(offload(1000), 8);
  EXPECT_EQ(to_string(plan_), "drop 3 [0, 32) kv device x4 when_ready\n");
}

TEST_F(OffloadNewest, OtherLayersOnAFullHostAreNoCopiesOfThese) {
  // Three groups are on the host, 6 cells, and one on the device, 2 cells, with a history of full blocks. For
  // that one the host has no room, and nothing comes free.
  view_.host.spare_slabs = 0;
  view_.running = {layered_resident(1, 20, 40), layered_seq(2, 20, 33, layers({3}))};
  PlanBuilder b(view_);
  EXPECT_EQ(offload_newest(view_, by_arrival(view_.running), 4, b), 0);
  EXPECT_EQ(b.coming_cells(), 0);
  EXPECT_TRUE(b.take().copies.empty());
}

// ---------------------------------------------------------------- shared blocks

TEST_F(OffloadNewest, OfSharedBlocksOnlyWhatItHoldsAloneComes) {
  // Of its 12 cells the block that is not full and two more are its own: those come, and the one before
  // brings its half.
  view_.running[2].own_cells[0][0] = 6;
  EXPECT_EQ(offload(3), 6);
  EXPECT_EQ(plan_.copies.size(), 4u);
  expect_pair(0, 3, kAll);
  expect_pair(1, 2, kHalf);
}

TEST_F(OffloadNewest, ASequenceThatHoldsNothingAloneIsPassedOver) {
  // All its full blocks are shared, or transfers still use them: nothing would come free.
  view_.running[2].own_cells[0][0] = 4;
  EXPECT_EQ(offload(1), 4);
  EXPECT_EQ(plan_.copies.size(), 2u);
  expect_pair(0, 2, kHalf);
}

// The host has no room, and all that lives of the newest request: in group 0 its first block is dead.
TEST_F(OffloadNewest, WhatIsDeadNeedNotBeOnTheHost) {
  view_ = layered_view(0, 0);
  view_.geometry.set_windows(std::vector<uint32_t>{16, 16, 0, 0, 0, 0, 0, 0});
  view_.running = {layered_resident(1, 20, 40), layered_resident(2, 20, 40)};
  SeqView& newest = view_.running[1];
  newest.dead_blocks = 1;
  ASSERT_EQ(view_.geometry.dead_blocks(newest.ready_tokens), 1u);
  set_cells(newest, Tier::kDevice, 3 * 4 - 1);
  set_cells(newest, Tier::kHost, 2 * 4 - 1);
  EXPECT_GT(offload(1), 0);
  ASSERT_FALSE(plan_.copies.empty());
  EXPECT_EQ(plan_.copies.back().verb, Verb::kDrop);
  newest.cells[0][static_cast<size_t>(Tier::kHost)] -= 1;
  view_.transfers_in_flight = 1;  // else an empty plan is refused
  EXPECT_EQ(offload(1), 0);
}

}  // namespace
}  // namespace kvasir::test
