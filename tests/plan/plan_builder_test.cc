// The builder's arithmetic on the device tier, by hand.
#include "plan/plan_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fakes/views.h"
#include "plan/plan_checker.h"

namespace kvasir::test {
namespace {

TEST(PlanBuilder, AdmissionPromisesTheWholePromptAndRowsDrawOnIt) {
  View view = make_view(10, 10);
  view.waiting = {waiting_seq(1, 50)};  // 4 blocks
  PlanBuilder b(view);
  EXPECT_EQ(b.available_blocks(), 10);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  EXPECT_EQ(b.available_blocks(), 6);
  EXPECT_EQ(b.running_seqs(), 1u);
  EXPECT_EQ(b.prefill(view.waiting[0], 20), 20u);
  EXPECT_EQ(b.available_blocks(), 6);
  EXPECT_EQ(b.planned_tokens(), 20u);
  const StepPlan plan = b.take();
  EXPECT_EQ(to_string(plan), "promise 1 8 cells on device\nprefill 1 [0, 20)\n");
  EXPECT_TRUE(check_plan(view, plan).ok());
}

TEST(PlanBuilder, ACachedPrefixIsAdoptedAndItsIdleBlocksArePaid) {
  View view = make_view(10, 3);
  set_idle(view, 2);
  view.waiting = {waiting_seq(1, 50, 32, 2)};  // 2 new blocks and 2 idle ones
  PlanBuilder b(view);
  EXPECT_EQ(b.available_blocks(), 5);
  EXPECT_FALSE(b.admit(view.waiting[0], {2}));
  ASSERT_TRUE(b.admit(view.waiting[0], {1}));
  EXPECT_EQ(b.available_blocks(), 1);
  EXPECT_EQ(b.prefill(view.waiting[0], 1000), 18u);
  EXPECT_EQ(to_string(b.take()),
            "adopt 1 [0, 32)\npromise 1 4 cells on device\nprefill 1 [32, 50) samples\n");
}

// A window of 40 tokens in group 0: a sequence of 13 blocks needs 13 cells of group 1, and of group 0 those
// of (40 + 32) / 16 blocks, rounded up, and one. Of a prefix of 12 blocks (192 - 39) / 16 = 9 are dead.
class PlanBuilderWindow : public testing::Test {
 protected:
  PlanBuilderWindow() {
    view_.geometry.set_windows(std::vector<uint32_t>{40, 40, 0, 0});
    view_.geometry.window_chunk = 32;
    view_.waiting = {waiting_seq(1, 200, 192)};
    view_.waiting[0].cached_resident_cells = 12 + 3;
  }
  // So many cells are free or idle.
  std::string admitted(uint32_t cells) {
    view_.device.spare_slabs = cells;
    PlanBuilder b(view_);
    if (b.admit(view_.waiting[0])) b.prefill(view_.waiting[0], 1000);
    return to_string(b.take());
  }
  View view_ = make_view(100, 0);
};

TEST_F(PlanBuilderWindow, APrefixThatNoneUsesTakesNoMoreThanItsSequenceNeeds) {
  ASSERT_EQ(view_.geometry.most_cells(13), 19u);
  view_.waiting[0].cached_idle[0][0] = 15;
  EXPECT_EQ(admitted(19), "adopt 1 [0, 192)\npromise 1 4 cells on device\nprefill 1 [192, 200) samples\n");
  EXPECT_EQ(admitted(18), "");
}

TEST_F(PlanBuilderWindow, AWindowThatOthersUseMakesNoRoom) {
  view_.waiting[0].cached_shared_cells = 3;
  EXPECT_EQ(admitted(7), "adopt 1 [0, 192)\npromise 1 7 cells on device\nprefill 1 [192, 200) samples\n");
  EXPECT_EQ(admitted(6), "");
}

// Two of twelve blocks of group 0 are on the host: of the resident cells twelve last, and one is of a window.
TEST_F(PlanBuilderWindow, OnlyWindowedCellsThatAreThereMakeNoRoom) {
  set_host(view_, 20, 10);
  set_ring(view_, 20);
  view_.waiting[0].cached_resident_cells = 13;
  view_.waiting[0].cached_shared_cells = 1;
  EXPECT_THAT(admitted(9), testing::HasSubstr("promise 1 7 cells on device"));
}

TEST(PlanBuilder, RefusesWhatDoesNotFit) {
  View view = make_view(10, 3);
  view.waiting = {waiting_seq(1, 64), waiting_seq(2, 48)};
  view.limits.max_num_seqs = 1;
  PlanBuilder b(view);
  EXPECT_FALSE(b.admit(view.waiting[0]));
  EXPECT_TRUE(b.admit(view.waiting[1]));
  EXPECT_EQ(b.available_blocks(), 0);
  view.waiting.push_back(waiting_seq(3, 0));
  EXPECT_FALSE(b.admit(view.waiting[2])) << "the limit of running sequences is reached";
}

TEST(PlanBuilder, ADecodeTakesABlockOnlyAtABlocksEnd) {
  View view = make_view(10, 1);
  view.running = {decoding_seq(1, 10, 16), decoding_seq(2, 10, 17), decoding_seq(3, 10, 33)};
  PlanBuilder b(view);
  EXPECT_TRUE(b.decode(view.running[0]));
  EXPECT_EQ(b.available_blocks(), 1);
  EXPECT_TRUE(b.decode(view.running[1]));
  EXPECT_EQ(b.available_blocks(), 0);
  EXPECT_FALSE(b.decode(view.running[2]));
  EXPECT_FALSE(b.has_rows(SeqId{3}));
  b.preempt_and_drop(view.running[2]);
  EXPECT_TRUE(b.preempted(SeqId{3}));
  EXPECT_EQ(b.available_blocks(), 2);
  EXPECT_EQ(b.running_seqs(), 2u);
  EXPECT_TRUE(check_plan(view, b.take()).ok());
}

TEST(PlanBuilder, WithAStepInFlightWhatIsGivenUpComesLater) {
  View view = make_view(10, 0);
  view.steps_in_flight = 1;
  set_pinned(view, 1);
  view.running = {decoding_seq(1, 10, 33)};
  PlanBuilder b(view);
  EXPECT_EQ(b.coming_blocks(), 1);
  b.preempt_and_drop(view.running[0]);
  EXPECT_EQ(b.available_blocks(), 0);
  EXPECT_EQ(b.coming_blocks(), 3);
}

TEST(PlanBuilder, APrefillEndsWhereMemoryEnds) {
  View view = make_view(10, 1);
  view.running = {running_seq(1, 100, 100, 20)};  // 2 blocks, 12 places left in the second
  PlanBuilder b(view);
  EXPECT_EQ(b.prefill(view.running[0], 1000), 28u);
  EXPECT_EQ(b.available_blocks(), 0);
  EXPECT_TRUE(check_plan(view, b.take()).ok());
}

TEST(PlanBuilder, BlocksThatOneGivesUpAndAnotherAdoptsAreNotFree) {
  // Sequence 1 alone holds 3 blocks, of which sequence 2 could adopt 2; nothing is free.
  View view = make_view(3, 0);
  view.running = {decoding_seq(1, 40, 48)};
  view.waiting = {waiting_seq(2, 48, 32, 0), waiting_seq(3, 20)};
  for (bool preempt_first : {true, false}) {
    PlanBuilder b(view);
    if (preempt_first) b.preempt_and_drop(view.running[0]);
    if (!preempt_first) {
      EXPECT_FALSE(b.admit(view.waiting[0])) << "its third block is not there yet";
      continue;
    }
    ASSERT_TRUE(b.admit(view.waiting[0]));
    EXPECT_EQ(b.available_blocks(), 0);
    EXPECT_FALSE(b.admit(view.waiting[1]));
    EXPECT_GT(b.prefill(view.waiting[0], 100), 0u);
    EXPECT_TRUE(check_plan(view, b.take()).ok());
  }
}

TEST(PlanBuilder, AKeptSequenceGoesOnFromItsCells) {
  View view = make_view(10, 2);
  SeqView kept = decoding_seq(1, 20, 40);  // 3 blocks held
  view.waiting = {kept};
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  EXPECT_EQ(b.available_blocks(), 2);
  ASSERT_TRUE(b.decode(view.waiting[0]));
  const StepPlan plan = b.take();
  EXPECT_EQ(to_string(plan), "decode 1 [39, 40) samples\n");
  EXPECT_TRUE(check_plan(view, plan).ok());

  PlanBuilder c(view);
  c.drop_waiting(view.waiting[0]);
  EXPECT_EQ(c.available_blocks(), 5);
}

TEST(PlanBuilder, RecomputationBeyondThePromptIsCalledThat) {
  View view = make_view(10, 10);
  view.running = {running_seq(1, 20, 50, 32)};
  PlanBuilder b(view);
  EXPECT_EQ(b.prefill(view.running[0], 8), 8u);
  EXPECT_EQ(to_string(b.take()), "recompute 1 [32, 40)\n");
}

TEST(PlanBuilderDeathTest, ASequenceHasRowsOnce) {
  View view = make_view(10, 10);
  view.running = {decoding_seq(1, 20, 30)};
  PlanBuilder b(view);
  ASSERT_TRUE(b.decode(view.running[0]));
  EXPECT_DEATH(b.preempt_and_drop(view.running[0]), "seq=1");
  EXPECT_DEATH((void)b.decode(view.running[0]), "seq=1");
}

}  // namespace
}  // namespace kvasir::test
