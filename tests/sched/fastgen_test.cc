// Plans of the FastGen policy, worked by hand. Blocks have 16 tokens.
#include <gtest/gtest.h>

#include "fakes/views.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

std::string fastgen_plan(const View& view) {
  return plan_of("fastgen", view);
}

TEST(FastgenPolicy, ShortPromptsAreComposedToFillTheStepExactly) {
  View view = view_with_budget(64, 30);
  view.running = {decoding_seq(2, 20, 30), decoding_seq(1, 20, 30)};
  view.waiting = {waiting_seq(3, 20), waiting_seq(4, 20), waiting_seq(5, 40), waiting_seq(6, 1)};
  EXPECT_EQ(fastgen_plan(view),
            "promise 3 4 cells on device\npromise 4 4 cells on device\npromise 5 6 cells on device\n"
            "decode 1 [29, 30) samples\ndecode 2 [29, 30) samples\n"
            "prefill 3 [0, 20) samples\nprefill 4 [0, 20) samples\nprefill 5 [0, 22)\n")
      << "2 + 20 + 20 + 22 = 64";
}

TEST(FastgenPolicy, ALongPromptIsSplitAndGoesOnBeforeNewOnes) {
  View view = view_with_budget(64, 30);
  SeqView half = running_seq(1, 100, 100, 64);
  half.promised_cells[0] = 3 * kViewGroups;
  set_promised(view, 3);
  view.running = {half};
  view.waiting = {waiting_seq(2, 50)};
  EXPECT_EQ(fastgen_plan(view),
            "promise 2 8 cells on device\nprefill 1 [64, 100) samples\nprefill 2 [0, 28)\n");
  view.limits.long_prefill_token_threshold = 10;
  EXPECT_EQ(fastgen_plan(view),
            "promise 2 8 cells on device\nprefill 1 [64, 100) samples\nprefill 2 [0, 28)\n")
      << "a bound on one chunk would leave the step unfilled";
}

TEST(FastgenPolicy, OneWithoutABlockIsLeftOutAndNoneIsPreempted) {
  View view = view_with_budget(64, 0);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 30), decoding_seq(3, 20, 30)};
  view.waiting = {waiting_seq(4, 4)};
  EXPECT_EQ(fastgen_plan(view), "decode 2 [29, 30) samples\ndecode 3 [29, 30) samples\n");
}

TEST(FastgenPolicy, TheFirstThatWasLeftOutHasTheFirstBlock) {
  View view = view_with_budget(64, 1);
  view.running = {decoding_seq(2, 20, 33), decoding_seq(1, 20, 33), decoding_seq(3, 20, 30)};
  view.waiting = {waiting_seq(4, 4)};
  EXPECT_EQ(fastgen_plan(view), "decode 1 [32, 33) samples\ndecode 3 [29, 30) samples\n");
}

TEST(FastgenPolicy, IfNoneCanGoOnTheLatestStartsAgain) {
  View view = view_with_budget(64, 0);
  view.running = {decoding_seq(3, 20, 33), decoding_seq(1, 20, 33), decoding_seq(2, 20, 49)};
  EXPECT_EQ(fastgen_plan(view), "preempt 3\ndrop_all 3 kv device\n");
  view.steps_in_flight = 1;
  EXPECT_EQ(fastgen_plan(view), "") << "what is in flight may bring a block";
}

TEST(FastgenPolicy, AdmitsInOrderWhileTheWholePromptFits) {
  View view = view_with_budget(64, 4);
  view.waiting = {waiting_seq(1, 40), waiting_seq(2, 32), waiting_seq(3, 1)};
  EXPECT_EQ(fastgen_plan(view), "promise 1 6 cells on device\nprefill 1 [0, 40) samples\n")
      << "none overtakes";
}

TEST(FastgenPolicy, RunsNoMoreThanTheLimit) {
  View view = view_with_budget(64, 30);
  view.limits.max_num_seqs = 2;
  view.running = {decoding_seq(1, 20, 30)};
  view.waiting = {waiting_seq(2, 5), waiting_seq(3, 5)};
  EXPECT_EQ(fastgen_plan(view),
            "promise 2 2 cells on device\ndecode 1 [29, 30) samples\nprefill 2 [0, 5) samples\n");
}

}  // namespace
}  // namespace kvasir::test
