// Admissions with some layer groups on the device and the others on the slower tier, cell by cell. Blocks
// have 16 tokens and four cells.
#include <gtest/gtest.h>

#include "fakes/layered_views.h"
#include "fakes/plan_checks.h"

namespace kvasir::test {
namespace {

const LayerSet kKept = layers({3});

AdmitOptions keeping(const LayerSet& kept, uint32_t spare_blocks = 0) {
  AdmitOptions options;
  options.spare_blocks = spare_blocks;
  options.kv = kept;
  return options;
}

RowOptions writing(const LayerSet& kept) {
  RowOptions options;
  options.kv = kept;
  return options;
}

// 40 tokens are two full blocks and one that is not. Kept in one group of four they take 2 x 1 + 4 = 6 cells
// on the device and 2 x 3 = 6 on the host. Through the ring pass the two full blocks.
TEST(PlanBuilderLayers, APromptIsPromisedRoomOnBothTiers) {
  View view = layered_view(20, 10);
  view.waiting = {layered_waiting(1, 40)};
  PlanBuilder b(view);
  EXPECT_EQ(b.available_cells(), 20);
  EXPECT_EQ(b.stage_room(), 20u);
  ASSERT_TRUE(b.admit(view.waiting[0], keeping(kKept)));
  EXPECT_EQ(b.available_cells(), 14);
  EXPECT_EQ(b.available_cells(Tier::kHost), 4);
  EXPECT_EQ(b.promised(view.waiting[0]), 6u);
  EXPECT_EQ(b.promised(view.waiting[0], Tier::kHost), 6u);
  ASSERT_EQ(b.prefill(view.waiting[0], 40, writing(kKept)), 40u);
  EXPECT_EQ(b.available_cells(), 14) << "the rows draw on the promise";
  EXPECT_EQ(b.available_cells(Tier::kHost), 4);
  EXPECT_EQ(b.promised(view.waiting[0]), 0u) << "to the last cell";
  EXPECT_EQ(b.promised(view.waiting[0], Tier::kHost), 0u);
  EXPECT_EQ(b.stage_room(), 18u);
  EXPECT_EQ(b.coming_cells(), 0);
  EXPECT_EQ(checked(view, b),
            "add 1 [0, 32) kv host x3 after_layer_writes\n"
            "promise 1 6 cells on device\npromise 1 6 cells on host\n"
            "prefill 1 [0, 40) samples x4 keeps kv x1 x x0\n");
}

TEST(PlanBuilderLayers, OneCellLessOnEitherTierIsRefused) {
  View view = layered_view(6, 6);
  view.waiting = {layered_waiting(1, 40)};
  PlanBuilder enough(view);
  EXPECT_TRUE(enough.admit(view.waiting[0], keeping(kKept)));
  EXPECT_EQ(enough.available_cells(), 0);
  EXPECT_EQ(enough.available_cells(Tier::kHost), 0);
  for (const Tier missing : {Tier::kDevice, Tier::kHost}) {
    View less = view;
    (missing == Tier::kDevice ? less.device : less.host).spare_slabs = 5;
    PlanBuilder b(less);
    EXPECT_FALSE(b.admit(less.waiting[0], keeping(kKept))) << name(missing);
    EXPECT_EQ(b.running_seqs(), 0u);
    EXPECT_EQ(b.promised(less.waiting[0]), 0u);
    EXPECT_EQ(b.available_cells(missing), 5) << "nothing is planned";
    EXPECT_TRUE(b.take().promises.empty());
  }
}

TEST(PlanBuilderLayers, WhatIsToBeSparedIsOfTheDevice) {
  View view = layered_view(10, 6);
  view.waiting = {layered_waiting(1, 40)};
  PlanBuilder b(view);
  EXPECT_FALSE(b.admit(view.waiting[0], keeping(kKept, 2))) << "four cells are left, two blocks are eight";
  EXPECT_TRUE(b.admit(view.waiting[0], keeping(kKept, 1)));
}

TEST(PlanBuilderLayers, NoneAndAllOfTheGroups) {
  // None: the last block's 4 cells, and 2 x 4 on the host. All: 3 x 4 and nothing.
  View view = layered_view(20, 10);
  view.waiting = {layered_waiting(1, 40), layered_waiting(2, 40)};
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0], keeping({})));
  EXPECT_EQ(b.promised(view.waiting[0]), 4u);
  EXPECT_EQ(b.promised(view.waiting[0], Tier::kHost), 8u);
  ASSERT_TRUE(b.admit(view.waiting[1], keeping(LayerSet::all(4))));
  EXPECT_EQ(b.promised(view.waiting[1]), 12u);
  EXPECT_EQ(b.promised(view.waiting[1], Tier::kHost), 0u);
}

TEST(PlanBuilderLayers, ALengthThatEndsWithABlockHasNoLastOne) {
  // 32 tokens, 2 full blocks: 2 cells and 6. Promised up to 48: 3 and 9.
  View view = layered_view(20, 10);
  view.waiting = {layered_waiting(1, 32)};
  PlanBuilder exact(view);
  ASSERT_TRUE(exact.admit(view.waiting[0], keeping(kKept)));
  EXPECT_EQ(exact.promised(view.waiting[0]), 2u);
  EXPECT_EQ(exact.promised(view.waiting[0], Tier::kHost), 6u);
  PlanBuilder longer(view);
  AdmitOptions options = keeping(kKept);
  options.total_tokens = 48;
  ASSERT_TRUE(longer.admit(view.waiting[0], options));
  EXPECT_EQ(longer.promised(view.waiting[0]), 3u);
  EXPECT_EQ(longer.promised(view.waiting[0], Tier::kHost), 9u);
}

// ---------------------------------------------------------------- a cached prefix

TEST(PlanBuilderLayers, ACachedPrefixOnTheDeviceStaysThere) {
  // One of the two full blocks is there: 1 + 4 cells, and 3 on the host; one block passes the ring.
  View view = layered_view(20, 10);
  view.waiting = {layered_waiting(1, 40, 16)};
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0], keeping(kKept)));
  EXPECT_EQ(b.available_cells(), 15);
  EXPECT_EQ(b.available_cells(Tier::kHost), 7);
  ASSERT_EQ(b.prefill(view.waiting[0], 40, writing(kKept)), 24u);
  EXPECT_EQ(b.stage_room(), 19u);
  EXPECT_EQ(checked(view, b),
            "adopt 1 [0, 16)\nadd 1 [16, 32) kv host x3 after_layer_writes\n"
            "promise 1 5 cells on device\npromise 1 3 cells on host\n"
            "prefill 1 [16, 40) samples x4 keeps kv x1 x x0\n");
}

TEST(PlanBuilderLayers, WhatIsIdleIsTakenWithIt) {
  // The four cells of the cached block are among those that are free: 20 - 4 - 5.
  View view = layered_view(20, 10);
  view.waiting = {layered_waiting(1, 40, 16)};
  view.waiting[0].cached_idle[0][0] = 4;
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0], keeping(kKept)));
  EXPECT_EQ(b.available_cells(), 11);
  View less = view;
  less.device.spare_slabs = 9;
  PlanBuilder enough(less);
  EXPECT_TRUE(enough.admit(less.waiting[0], keeping(kKept)));
  less.device.spare_slabs = 8;
  // Of eight cells the block would leave four: it is recomputed, in six.
  PlanBuilder without(less);
  ASSERT_TRUE(without.admit(less.waiting[0], keeping(kKept)));
  EXPECT_EQ(without.available_cells(), 2);
  EXPECT_TRUE(without.take().adoptions.empty());
  less.device.spare_slabs = 5;
  PlanBuilder missing(less);
  EXPECT_FALSE(missing.admit(less.waiting[0], keeping(kKept)));
}

TEST(PlanBuilderLayers, ACachedPrefixOnTheHostIsStagedAndNotCopied) {
  // Nothing of it comes to the device: 1 + 4 cells are promised. It passes the ring with the other full
  // block.
  View view = layered_view(20, 10);
  view.waiting = {layered_waiting(1, 40, 16)};
  view.waiting[0].cached_resident_cells = 0;
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0], keeping(kKept)));
  EXPECT_EQ(b.available_cells(), 15);
  EXPECT_EQ(b.available_cells(Tier::kHost), 7);
  ASSERT_EQ(b.prefill(view.waiting[0], 40, writing(kKept)), 24u);
  EXPECT_EQ(b.stage_room(), 18u);
  EXPECT_EQ(checked(view, b),
            "adopt 1 [0, 16)\nstage 1 [0, 16) kv device x4 before_layer\n"
            "add 1 [16, 32) kv host x3 after_layer_writes\n"
            "promise 1 5 cells on device\npromise 1 3 cells on host\n"
            "prefill 1 [16, 40) samples x4 keeps kv x1 x x0\n");
}

TEST(PlanBuilderLayers, APrefixThatDoesNotPassTheRingIsComputed) {
  // The ring passes one block, and two are cached: all three full blocks of 56 tokens are computed, in a
  // chunk of one full block of them and 15 tokens of the next.
  View view = layered_view(20, 20);
  set_ring(view, 1);
  view.waiting = {layered_waiting(1, 56, 32)};
  view.waiting[0].cached_resident_cells = 0;
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0], keeping(kKept)));
  EXPECT_EQ(b.promised(view.waiting[0]), 7u) << "3 x 1 + 4";
  EXPECT_EQ(b.promised(view.waiting[0], Tier::kHost), 9u);
  EXPECT_EQ(b.prefill(view.waiting[0], 56, writing(kKept)), 31u);
  EXPECT_EQ(b.stage_room(), 0u);
  const StepPlan plan = b.take();
  EXPECT_TRUE(plan.adoptions.empty());
  EXPECT_TRUE(check_plan(view, plan).ok());
}

// ---------------------------------------------------------------- from the slower tier

TEST(PlanBuilderLayers, WhatIsHeldOnTheSlowerTierStaysAndIsStaged) {
  // 39 tokens, three blocks, on the host. The one that is not full comes back: 4 cells, and 4 more are to be
  // there for the block that the next step may begin.
  View view = layered_view(8, 0);
  view.waiting = {layered_swapped(1, 20, 40, 39)};
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0], keeping(kKept)));
  EXPECT_EQ(b.available_cells(), 4);
  ASSERT_TRUE(b.decode(view.waiting[0], writing(kKept)));
  EXPECT_EQ(b.stage_room(), 17u) << "of the groups on the host all three blocks may be staged";
  EXPECT_EQ(checked(view, b),
            "add 1 [32, 39) kv device x4 before_layer\nstage 1 [0, 39) kv device x4 before_layer\n"
            "decode 1 [39, 40) samples x4 keeps kv x1 x x0\n");
  view.device.spare_slabs = 7;
  PlanBuilder missing(view);
  EXPECT_FALSE(missing.admit(view.waiting[0], keeping(kKept)));
  EXPECT_EQ(missing.available_cells(), 7);
  // Without the option all three blocks would have to come.
  view.device.spare_slabs = 11;
  PlanBuilder whole(view);
  EXPECT_FALSE(whole.admit(view.waiting[0]));
}

TEST(PlanBuilderLayers, WhatItHasStillToComputeIsPromisedBesideWhatComesBack) {
  // 90 tokens are five full blocks and one that is not; three are held, the last of them not full. It comes
  // back with 4 cells; of the two full ones to come one group is kept, 2 x 1, and the last takes 4: 6 more on
  // the device and 2 x 3 on the host. 4 are asked for beside them.
  View view = layered_view(14, 6);
  view.waiting = {layered_swapped(1, 90, 90, 39)};
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0], keeping(kKept)));
  EXPECT_EQ(b.available_cells(), 4);
  EXPECT_EQ(b.available_cells(Tier::kHost), 0);
  EXPECT_EQ(b.promised(view.waiting[0]), 6u);
  ASSERT_EQ(b.prefill(view.waiting[0], 90, writing(kKept)), 51u);
  EXPECT_EQ(b.available_cells(), 4);
  EXPECT_EQ(b.promised(view.waiting[0]), 0u);
  EXPECT_EQ(b.promised(view.waiting[0], Tier::kHost), 0u);
  EXPECT_EQ(b.stage_room(), 15u) << "three blocks of history and two full ones";
  EXPECT_EQ(checked(view, b),
            "add 1 [32, 39) kv device x4 before_layer\nstage 1 [0, 39) kv device x4 before_layer\n"
            "add 1 [48, 80) kv host x3 after_layer_writes\n"
            "promise 1 10 cells on device\npromise 1 6 cells on host\n"
            "prefill 1 [39, 90) samples x4 keeps kv x1 x x0\n");
  for (const Tier missing : {Tier::kDevice, Tier::kHost}) {
    View less = view;
    --(missing == Tier::kDevice ? less.device : less.host).spare_slabs;
    PlanBuilder c(less);
    EXPECT_FALSE(c.admit(less.waiting[0], keeping(kKept))) << name(missing);
    EXPECT_EQ(c.available_cells(Tier::kDevice), less.device.spare_slabs);
  }
}

// ---------------------------------------------------------------- what the checker refuses

class LayersMutated : public testing::Test {
 protected:
  LayersMutated() {
    view_.waiting = {layered_waiting(1, 40)};
    PlanBuilder b(view_);
    EXPECT_TRUE(b.admit(view_.waiting[0], keeping(kKept)));
    EXPECT_EQ(b.prefill(view_.waiting[0], 40, writing(kKept)), 40u);
    plan_ = b.take();
    EXPECT_TRUE(check_plan(view_, plan_).ok());
  }
  View view_ = layered_view(6, 6);
  StepPlan plan_;
};

TEST_F(LayersMutated, APromiseOfOneCellMore) {
  for (Promise& p : plan_.promises) {
    ++p.cells;
    expect_broken(view_, plan_,
                  std::string("takes 1 cells of kv more than are free, idle or given up on the ") +
                      name(p.tier) + " tier");
    --p.cells;
  }
}

TEST_F(LayersMutated, RowsThatKeepWhatGoesToTheHost) {
  plan_.rows[0].writes.kv.add(0);
  expect_broken(view_, plan_, "of what its rows write, 3 layer groups go to a slower tier, 2 stay");
}

TEST_F(LayersMutated, RowsThatKeepOneGroupMoreThanThereIsRoomFor) {
  // Group 0 stays and does not go to the host: two cells more on the device.
  plan_.rows[0].writes.kv.add(0);
  plan_.copies[0].layers.remove(0);
  expect_broken(view_, plan_, "takes 2 cells of kv more than are free, idle or given up on the device tier");
}

TEST_F(LayersMutated, ARingThatPassesOneBlockOfTheTwo) {
  view_.stage_blocks = 1;
  expect_broken(view_, plan_, "stages 2 blocks of a layer, the ring has room for 1");
}

}  // namespace
}  // namespace kvasir::test
