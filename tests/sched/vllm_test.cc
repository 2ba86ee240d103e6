// Plans of the vLLM policy, worked by hand. Blocks have 16 tokens.
#include <gtest/gtest.h>

#include "fakes/views.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

std::string vllm_plan(const View& view) {
  return plan_of("vllm", view);
}

TEST(VllmPolicy, AdmitsInOrderOfArrivalWithinTheBudget) {
  View view = make_view(50, 50);
  view.limits.max_num_batched_tokens = 100;
  view.waiting = {waiting_seq(1, 40), waiting_seq(2, 60), waiting_seq(3, 1)};
  EXPECT_EQ(vllm_plan(view),
            "promise 1 6 cells on device\npromise 2 8 cells on device\n"
            "prefill 1 [0, 40) samples\nprefill 2 [0, 60) samples\n");
}

TEST(VllmPolicy, StopsAtTheFirstThatDoesNotFit) {
  View view = make_view(50, 50);
  view.limits.max_num_batched_tokens = 100;
  view.waiting = {waiting_seq(1, 40), waiting_seq(2, 61), waiting_seq(3, 1)};
  EXPECT_EQ(vllm_plan(view), "promise 1 6 cells on device\nprefill 1 [0, 40) samples\n") << "none overtakes";
  view = make_view(50, 4);
  view.waiting = {waiting_seq(1, 40), waiting_seq(2, 32), waiting_seq(3, 1)};
  EXPECT_EQ(vllm_plan(view), "promise 1 6 cells on device\nprefill 1 [0, 40) samples\n")
      << "one block is not two";
}

TEST(VllmPolicy, APromptAboveTheBudgetGoesAlone) {
  View view = make_view(50, 50);
  view.limits.max_num_batched_tokens = 100;
  view.waiting = {waiting_seq(1, 200), waiting_seq(2, 5)};
  EXPECT_EQ(vllm_plan(view), "promise 1 26 cells on device\nprefill 1 [0, 200) samples\n");
  view.waiting = {waiting_seq(1, 5), waiting_seq(2, 200)};
  EXPECT_EQ(vllm_plan(view), "promise 1 2 cells on device\nprefill 1 [0, 5) samples\n");
}

TEST(VllmPolicy, KeepsAWatermarkOfOnePercent) {
  View view = make_view(300, 4);
  view.running = {decoding_seq(1, 20, 30)};
  view.waiting = {waiting_seq(2, 17)};  // 2 blocks, and 3 of 300 are to stay
  EXPECT_EQ(vllm_plan(view), "decode 1 [29, 30) samples\n");
  view.device.spare_slabs = 5 * kViewGroups;
  EXPECT_EQ(vllm_plan(view), "promise 2 4 cells on device\nprefill 2 [0, 17) samples\n")
      << "prefill goes before decode";
  view = make_view(300, 2);
  view.waiting = {waiting_seq(2, 17)};
  EXPECT_EQ(vllm_plan(view), "promise 2 4 cells on device\nprefill 2 [0, 17) samples\n")
      << "no watermark alone";
}

TEST(VllmPolicy, DecodesAllWhenNoneCanBeAdmitted) {
  View view = make_view(20, 2);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 30)};
  view.waiting = {waiting_seq(3, 90)};
  EXPECT_EQ(vllm_plan(view), "decode 1 [32, 33) samples\ndecode 2 [29, 30) samples\n");
}

TEST(VllmPolicy, TheLatestArrivalIsPreemptedFirst) {
  // 1 and 2 need a block each and none is free; the view's order is that of admission, not of arrival.
  View view = make_view(20, 0);
  view.running = {decoding_seq(3, 20, 30), decoding_seq(1, 20, 33), decoding_seq(2, 20, 49)};
  EXPECT_EQ(vllm_plan(view),
            "preempt 3\ndrop_all 3 kv device\n"
            "decode 1 [32, 33) samples\ndecode 2 [48, 49) samples\n");
}

TEST(VllmPolicy, ASequenceThatIsTheLastIsPreemptedItself) {
  View view = make_view(20, 0);
  view.running = {decoding_seq(1, 20, 30), decoding_seq(2, 20, 33)};
  EXPECT_EQ(vllm_plan(view), "preempt 2\ndrop_all 2 kv device\ndecode 1 [29, 30) samples\n");
}

TEST(VllmPolicy, TheEarliestKeepsItsCellsWhenTheOthersSharedTheirs) {
  // What 2 and 3 hold they share, so that giving it up counts as nothing until it is done.
  View view = make_view(20, 0);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 30), decoding_seq(3, 20, 30)};
  view.running[1].own_cells = {};
  view.running[2].own_cells = {};
  EXPECT_EQ(vllm_plan(view), "preempt 3\npreempt 2\ndrop_all 3 kv device\ndrop_all 2 kv device\n");
}

TEST(VllmPolicy, WaitsForBlocksThatAStepInFlightStillUses) {
  View view = make_view(20, 0);
  view.steps_in_flight = 1;
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 33), decoding_seq(3, 20, 30)};
  EXPECT_EQ(vllm_plan(view), "preempt 3\ndrop_all 3 kv device\n") << "its two blocks are enough";
  set_pinned(view, 2);
  EXPECT_EQ(vllm_plan(view), "decode 3 [29, 30) samples\n") << "none need be preempted";
}

TEST(VllmPolicy, DoesNotAdmitIntoBlocksThatAWaitingDecodeIsAfter) {
  View view = make_view(20, 2);
  view.steps_in_flight = 1;
  view.running = {decoding_seq(1, 20, 33)};
  view.waiting = {waiting_seq(3, 30)};
  EXPECT_EQ(vllm_plan(view), "decode 1 [32, 33) samples\n");
}

TEST(VllmPolicy, AResumedSequenceComputesItsOutputAgainToo) {
  View view = make_view(20, 10);
  SeqView resumed = waiting_seq(1, 20);
  resumed.known_tokens = 50;
  resumed.preemptions = 1;
  view.waiting = {resumed, waiting_seq(2, 10)};
  EXPECT_EQ(vllm_plan(view),
            "promise 1 8 cells on device\npromise 2 2 cells on device\n"
            "prefill 1 [0, 50) samples\nprefill 2 [0, 10) samples\n");
}

TEST(VllmPolicy, ACachedPrefixIsNotComputed) {
  View view = make_view(20, 10);
  view.limits.max_num_batched_tokens = 30;
  view.waiting = {waiting_seq(1, 50, 32), waiting_seq(2, 12)};
  EXPECT_EQ(vllm_plan(view),
            "adopt 1 [0, 32)\npromise 1 4 cells on device\npromise 2 2 cells on device\n"
            "prefill 1 [32, 50) samples\nprefill 2 [0, 12) samples\n");
}

TEST(VllmPolicy, APromptThatWasCutShortIsFinishedBesideTheDecodes) {
  View view = make_view(20, 10);
  view.limits.max_prefill_beside_decodes = 16;
  view.running = {decoding_seq(1, 20, 30), running_seq(2, 60, 60, 40)};
  view.waiting = {waiting_seq(3, 5)};
  EXPECT_EQ(vllm_plan(view), "decode 1 [29, 30) samples\nprefill 2 [40, 56)\n") << "and none is admitted";
  view.running[1] = running_seq(2, 60, 60, 56);
  EXPECT_EQ(vllm_plan(view), "decode 1 [29, 30) samples\nprefill 2 [56, 60) samples\n");
}

TEST(VllmPolicy, PromptsThatWaitForOneAnothersMemoryDoNotWaitForEver) {
  View view = make_view(8, 0);
  view.running = {running_seq(1, 100, 100, 64), running_seq(2, 100, 100, 64)};
  EXPECT_EQ(vllm_plan(view), "preempt 2\ndrop_all 2 kv device\n");
  view.transfers_in_flight = 1;
  EXPECT_EQ(vllm_plan(view), "") << "it may end in room for one of them";
}

TEST(VllmPolicy, RunsNoMoreThanTheLimit) {
  View view = make_view(20, 10);
  view.limits.max_num_seqs = 2;
  view.running = {decoding_seq(1, 20, 30)};
  view.waiting = {waiting_seq(2, 5), waiting_seq(3, 5)};
  EXPECT_EQ(vllm_plan(view), "promise 2 2 cells on device\nprefill 2 [0, 5) samples\n");
  view.running.push_back(decoding_seq(4, 20, 30));
  EXPECT_EQ(vllm_plan(view), "decode 1 [29, 30) samples\ndecode 4 [29, 30) samples\n");
}

}  // namespace
}  // namespace kvasir::test
