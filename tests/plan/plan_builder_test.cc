// The builder's arithmetic on the device tier, by hand.
#include "plan/plan_builder.h"

#include <gtest/gtest.h>

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
