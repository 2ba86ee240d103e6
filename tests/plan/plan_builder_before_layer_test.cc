// Layer groups that are brought before their rows come to them are not staged beside it. Blocks have 16
// tokens and four cells.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "fakes/layered_views.h"
#include "fakes/plan_checks.h"

namespace kvasir::test {
namespace {

// 39 tokens are ready: two full blocks, in group 3 on the device and in the others on the host, and a third
// with seven tokens on the device. 8 cells are free.
class BeforeLayer : public testing::Test {
 protected:
  BeforeLayer() { view_.running = {layered_seq(1, 20, 40, layers({3}))}; }
  const SeqView& seq() const { return view_.running[0]; }
  bool bring(PlanBuilder& b, const LayerSet& which, Interval tokens = {0, 39},
             Trigger trigger = Trigger::kBeforeLayer) {
    return b.add_copies(seq(), tokens, which, Tier::kDevice, trigger);
  }
  View view_ = layered_view(8, 10);
};

TEST_F(BeforeLayer, WithoutItWhatIsAwayIsStaged) {
  PlanBuilder b(view_);
  ASSERT_TRUE(b.decode(seq()));
  EXPECT_EQ(b.stage_room(), 18u) << "two blocks of each layer";
  EXPECT_EQ(b.available_cells(), 8);
  EXPECT_EQ(checked(view_, b), "stage 1 [0, 39) kv device x3 before_layer\ndecode 1 [39, 40) samples\n");
}

TEST_F(BeforeLayer, AllThatIsAwayComesAndNothingIsStaged) {
  PlanBuilder b(view_);
  ASSERT_TRUE(bring(b, layers({0, 1, 2})));
  EXPECT_EQ(b.available_cells(), 2) << "two full blocks in three groups";
  ASSERT_TRUE(b.decode(seq()));
  EXPECT_EQ(b.stage_room(), 20u) << "the ring is not charged";
  EXPECT_EQ(checked(view_, b), "add 1 [0, 32) kv device x3 before_layer\ndecode 1 [39, 40) samples\n");
}

TEST_F(BeforeLayer, WhatIsStagedIsChargedWhicheverComesFirst) {
  PlanBuilder b(view_);
  ASSERT_TRUE(bring(b, layers({1, 2})));
  ASSERT_TRUE(b.decode(seq()));
  StepPlan plan = b.take();
  ASSERT_EQ(plan.copies.size(), 2u);
  std::swap(plan.copies[0], plan.copies[1]);
  EXPECT_TRUE(check_plan(view_, plan).ok());
  set_ring(view_, 1);
  expect_broken(view_, plan, "stages 2 blocks of a layer, the ring has room for 1");
}

TEST_F(BeforeLayer, ThenItRunsWithoutARing) {
  set_ring(view_, 0);
  PlanBuilder none(view_);
  EXPECT_FALSE(none.decode(seq()));
  PlanBuilder b(view_);
  ASSERT_TRUE(bring(b, layers({0, 1, 2})));
  EXPECT_TRUE(b.decode(seq()));
  checked(view_, b);
}

TEST_F(BeforeLayer, InTwoCallsAsInOne) {
  PlanBuilder b(view_);
  ASSERT_TRUE(bring(b, layers({0, 2})));
  ASSERT_TRUE(bring(b, layers({1})));
  EXPECT_EQ(b.available_cells(), 2);
  ASSERT_TRUE(b.decode(seq()));
  EXPECT_EQ(b.stage_room(), 20u);
  EXPECT_EQ(checked(view_, b),
            "add 1 [0, 32) kv device x2 before_layer\nadd 1 [0, 32) kv device x1 before_layer\n"
            "decode 1 [39, 40) samples\n");
}

TEST_F(BeforeLayer, OfThoseThatComePartlyTheOthersAreStaged) {
  PlanBuilder b(view_);
  ASSERT_TRUE(bring(b, layers({1})));
  EXPECT_EQ(b.available_cells(), 6);
  ASSERT_TRUE(b.decode(seq()));
  EXPECT_EQ(b.stage_room(), 18u) << "the ring passes a layer at a time: two blocks as before";
  const StepPlan plan = b.take();
  EXPECT_TRUE(check_plan(view_, plan).ok());
  EXPECT_EQ(to_string(plan),
            "add 1 [0, 32) kv device x1 before_layer\nstage 1 [0, 39) kv device x2 before_layer\n"
            "decode 1 [39, 40) samples\n");
  EXPECT_EQ(plan.copies[1].layers, layers({0, 2}));
  // Without staging one of the groups nothing brings it.
  StepPlan mutated = plan;
  mutated.copies[1].layers = layers({0});
  expect_broken(view_, mutated, "1 of 4 layer groups are neither on the device nor staged");
  mutated.copies = {plan.copies[0]};
  expect_broken(view_, mutated, "2 of 4 layer groups are neither on the device nor staged");
}

TEST_F(BeforeLayer, CopiesThatRowsDoNotWaitForAreStagedToo) {
  for (Trigger trigger : {Trigger::kNow, Trigger::kBackground}) {
    PlanBuilder b(view_);
    ASSERT_TRUE(bring(b, layers({0, 1, 2}), {0, 39}, trigger));
    ASSERT_TRUE(b.decode(seq()));
    EXPECT_EQ(b.stage_room(), 18u);
    StepPlan plan = b.take();
    EXPECT_TRUE(check_plan(view_, plan).ok());
    ASSERT_EQ(plan.copies.size(), 2u);
    EXPECT_EQ(plan.copies[1].verb, Verb::kStage);
    EXPECT_EQ(plan.copies[1].layers, layers({0, 1, 2}));
    plan.copies.pop_back();
    expect_broken(view_, plan, "3 of 4 layer groups are neither on the device nor staged");
  }
}

TEST_F(BeforeLayer, PartOfTheHistoryIsNotTheHistory) {
  for (const Interval part : {Interval{0, 16}, Interval{16, 32}}) {
    PlanBuilder b(view_);
    ASSERT_TRUE(bring(b, layers({0, 1, 2}), part));
    EXPECT_EQ(b.available_cells(), 5);
    ASSERT_TRUE(b.decode(seq()));
    EXPECT_EQ(b.stage_room(), 18u);
    StepPlan plan = b.take();
    EXPECT_TRUE(check_plan(view_, plan).ok());
    ASSERT_EQ(plan.copies.size(), 2u);
    EXPECT_EQ(plan.copies[1].layers, layers({0, 1, 2}));
    plan.copies.pop_back();
    expect_broken(view_, plan, "3 of 4 layer groups are neither on the device nor staged");
  }
}

TEST_F(BeforeLayer, CellsForNoRowsAreRefusedOneCellShort) {
  view_.device.spare_slabs = 5;
  PlanBuilder b(view_);
  EXPECT_FALSE(bring(b, layers({0, 1, 2})));
  EXPECT_EQ(b.available_cells(), 5);
  ASSERT_TRUE(b.decode(seq()));
  EXPECT_EQ(checked(view_, b), "stage 1 [0, 39) kv device x3 before_layer\ndecode 1 [39, 40) samples\n");
}

TEST_F(BeforeLayer, BehindItsRowsItComesTooLateForThem) {
  PlanBuilder b(view_);
  ASSERT_TRUE(b.decode(seq()));
  ASSERT_TRUE(bring(b, layers({0, 1, 2})));
  EXPECT_EQ(checked(view_, b),
            "stage 1 [0, 39) kv device x3 before_layer\nadd 1 [0, 32) kv device x3 before_layer\n"
            "decode 1 [39, 40) samples\n");
}

TEST_F(BeforeLayer, OnlyItsOwn) {
  view_.running.push_back(layered_seq(2, 20, 40, layers({0})));
  PlanBuilder b(view_);
  ASSERT_TRUE(bring(b, layers({0, 1, 2})));
  for (const SeqView& s : view_.running) ASSERT_TRUE(b.decode(s));
  EXPECT_EQ(b.stage_room(), 18u);
  EXPECT_EQ(checked(view_, b),
            "add 1 [0, 32) kv device x3 before_layer\nstage 2 [0, 39) kv device x3 before_layer\n"
            "decode 1 [39, 40) samples\ndecode 2 [39, 40) samples\n");
}

TEST_F(BeforeLayer, CellsGivenUpAreComingAndNotAvailable) {
  PlanBuilder b(view_);
  b.release(seq(), {0, 32}, layers({3}), Tier::kDevice);
  EXPECT_EQ(b.coming_cells(), 2);
  EXPECT_EQ(b.available_cells(), 8);
}

// ---------------------------------------------------------------- the block that is not full

TEST_F(BeforeLayer, AHistoryOfFullBlocks) {
  view_.running = {layered_seq(1, 20, 33, layers({3}))};
  PlanBuilder b(view_);
  ASSERT_TRUE(bring(b, layers({0, 1, 2})));
  EXPECT_EQ(b.available_cells(), 2);
  // The token goes into a block of its own, for which there are two cells of four.
  EXPECT_FALSE(b.decode(seq()));
  view_.device.spare_slabs = 10;
  PlanBuilder c(view_);
  ASSERT_TRUE(bring(c, layers({0, 1, 2})));
  ASSERT_TRUE(c.decode(seq()));
  EXPECT_EQ(c.available_cells(), 0);
  EXPECT_EQ(c.stage_room(), 20u);
  EXPECT_EQ(checked(view_, c), "add 1 [0, 32) kv device x3 before_layer\ndecode 1 [32, 33) samples\n");
}

// It comes back from the host with the block that is not full, and, before their layers, with two groups of
// the others: 4 cells and 2 x 2.
TEST(BeforeLayerTail, IsBroughtFirst) {
  View view = layered_view(8, 0);
  view.waiting = {layered_swapped(1, 20, 40, 39)};
  PlanBuilder b(view);
  AdmitOptions options;
  options.kv = layers({1, 3});
  ASSERT_TRUE(b.admit(view.waiting[0], options));
  ASSERT_TRUE(b.add_copies(view.waiting[0], {0, 39}, layers({1, 3}), Tier::kDevice, Trigger::kBeforeLayer));
  EXPECT_EQ(b.available_cells(), 0);
  ASSERT_TRUE(b.decode(view.waiting[0]));
  EXPECT_EQ(b.stage_room(), 17u);
  const StepPlan plan = b.take();
  EXPECT_TRUE(check_plan(view, plan).ok());
  EXPECT_EQ(to_string(plan),
            "add 1 [32, 39) kv device x4 before_layer\nadd 1 [0, 32) kv device x2 before_layer\n"
            "stage 1 [0, 39) kv device x2 before_layer\ndecode 1 [39, 40) samples\n");
  // Without the block that is not full the two groups are not all there.
  StepPlan mutated = plan;
  mutated.copies.erase(mutated.copies.begin());
  expect_broken(view, mutated, "2 of 4 layer groups are neither on the device nor staged");
}

TEST(BeforeLayerTail, WhatIsBroughtAheadOfItIsStagedToo) {
  // As above, but for the order: while the block that is not full is away, no group is all there.
  View view = layered_view(12, 0);
  view.waiting = {layered_swapped(1, 20, 40, 39)};
  PlanBuilder b(view);
  ASSERT_TRUE(b.add_copies(view.waiting[0], {0, 39}, layers({1, 3}), Tier::kDevice, Trigger::kBeforeLayer));
  AdmitOptions options;
  options.kv = layers({1, 3});
  ASSERT_TRUE(b.admit(view.waiting[0], options));
  EXPECT_EQ(b.available_cells(), 4);
  ASSERT_TRUE(b.decode(view.waiting[0]));
  EXPECT_EQ(checked(view, b),
            "add 1 [0, 32) kv device x2 before_layer\nadd 1 [32, 39) kv device x4 before_layer\n"
            "stage 1 [0, 39) kv device x4 before_layer\ndecode 1 [39, 40) samples\n");
}

TEST(BeforeLayerTail, WithAllGroupsNothingIsStaged) {
  View view = layered_view(12, 0);
  set_ring(view, 0);
  view.waiting = {layered_swapped(1, 20, 40, 39)};
  PlanBuilder b(view);
  AdmitOptions options;
  options.kv = LayerSet::all(4);
  ASSERT_TRUE(b.admit(view.waiting[0], options));
  EXPECT_EQ(b.available_cells(), 8);
  ASSERT_TRUE(b.add_copies(view.waiting[0], {0, 39}, LayerSet::all(4), Tier::kDevice, Trigger::kBeforeLayer));
  EXPECT_EQ(b.available_cells(), 0);
  ASSERT_TRUE(b.decode(view.waiting[0]));
  EXPECT_EQ(checked(view, b),
            "add 1 [32, 39) kv device x4 before_layer\nadd 1 [0, 32) kv device x4 before_layer\n"
            "decode 1 [39, 40) samples\n");
}

}  // namespace
}  // namespace kvasir::test
