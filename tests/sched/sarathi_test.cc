// Plans of the Sarathi-Serve policy, worked by hand. Blocks have 16 tokens.
#include <gtest/gtest.h>

#include "fakes/views.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

std::string sarathi_plan(const View& view) {
  return plan_of("sarathi", view);
}

TEST(SarathiPolicy, DecodesFirstAndGivesTheRestToChunks) {
  View view = view_with_budget(32, 30);
  SeqView half = running_seq(2, 100, 100, 40);
  half.promised_cells[0] = 8;
  set_promised(view, 4);
  view.running = {half, decoding_seq(3, 20, 30), decoding_seq(1, 20, 30)};
  view.waiting = {waiting_seq(4, 50)};
  EXPECT_EQ(sarathi_plan(view), "decode 1 [29, 30) samples\ndecode 3 [29, 30) samples\nprefill 2 [40, 70)\n");
  view.limits.max_num_batched_tokens = 72;
  EXPECT_EQ(sarathi_plan(view),
            "promise 4 8 cells on device\n"
            "decode 1 [29, 30) samples\ndecode 3 [29, 30) samples\n"
            "prefill 2 [40, 100) samples\nprefill 4 [0, 10)\n");
}

TEST(SarathiPolicy, ChunksALongPromptAndStopsAtTheBudget) {
  View view = view_with_budget(64, 30);
  view.waiting = {waiting_seq(1, 200), waiting_seq(2, 5)};
  EXPECT_EQ(sarathi_plan(view), "promise 1 26 cells on device\nprefill 1 [0, 64)\n");
}

TEST(SarathiPolicy, TheThresholdBoundsTheChunkOfOneSequence) {
  View view = view_with_budget(64, 30);
  view.limits.long_prefill_token_threshold = 24;
  view.waiting = {waiting_seq(1, 200), waiting_seq(2, 100), waiting_seq(3, 100)};
  EXPECT_EQ(sarathi_plan(view),
            "promise 1 26 cells on device\npromise 2 14 cells on device\npromise 3 14 cells on device\n"
            "prefill 1 [0, 24)\nprefill 2 [0, 24)\nprefill 3 [0, 16)\n");
}

TEST(SarathiPolicy, AdmitsInOrderWhileTheWholePromptsBlocksAreFree) {
  View view = view_with_budget(64, 4);
  view.waiting = {waiting_seq(1, 40), waiting_seq(2, 32), waiting_seq(3, 1)};
  EXPECT_EQ(sarathi_plan(view), "promise 1 6 cells on device\nprefill 1 [0, 40) samples\n")
      << "none overtakes";
}

TEST(SarathiPolicy, KeepsAWatermarkOfOnePercent) {
  View view = make_view(300, 4);
  view.running = {decoding_seq(1, 20, 30)};
  view.waiting = {waiting_seq(2, 17)};  // 2 blocks, and 3 of 300 are to stay
  EXPECT_EQ(sarathi_plan(view), "decode 1 [29, 30) samples\n");
  view.device.spare_slabs = 5 * kViewGroups;
  EXPECT_EQ(sarathi_plan(view),
            "promise 2 4 cells on device\ndecode 1 [29, 30) samples\nprefill 2 [0, 17) samples\n");
  view = make_view(300, 2);
  view.waiting = {waiting_seq(2, 17)};
  EXPECT_EQ(sarathi_plan(view), "promise 2 4 cells on device\nprefill 2 [0, 17) samples\n")
      << "no watermark alone";
}

TEST(SarathiPolicy, DecodesAreNotCutByTheBudget) {
  View view = view_with_budget(1, 4);
  view.running = {decoding_seq(1, 20, 30), decoding_seq(2, 20, 30)};
  view.waiting = {waiting_seq(3, 4)};
  EXPECT_EQ(sarathi_plan(view), "decode 1 [29, 30) samples\ndecode 2 [29, 30) samples\n");
}

TEST(SarathiPolicy, NoneIsAdmittedAfterAPreemption) {
  // 3 gives up two blocks for the one that 1 needs; the other would do for 4.
  View view = view_with_budget(64, 0);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 30), decoding_seq(3, 20, 30)};
  view.waiting = {waiting_seq(4, 4)};
  EXPECT_EQ(sarathi_plan(view),
            "preempt 3\ndrop_all 3 kv device\n"
            "decode 1 [32, 33) samples\ndecode 2 [29, 30) samples\n");
}

TEST(SarathiPolicy, APrefillThatIsTheLatestArrivalIsPreemptedToo) {
  View view = view_with_budget(64, 0);
  view.running = {decoding_seq(1, 20, 33), running_seq(2, 100, 100, 40)};
  EXPECT_EQ(sarathi_plan(view), "preempt 2\ndrop_all 2 kv device\ndecode 1 [32, 33) samples\n");
}

TEST(SarathiPolicy, AResumedSequenceComputesItsOutputAgainInChunks) {
  View view = view_with_budget(32, 10);
  SeqView resumed = waiting_seq(1, 20);
  resumed.known_tokens = 50;
  view.waiting = {resumed};
  EXPECT_EQ(sarathi_plan(view), "promise 1 8 cells on device\nprefill 1 [0, 32)\n");
  SeqView going_on = running_seq(1, 20, 50, 32);
  going_on.promised_cells[0] = 4;
  set_promised(view, 2);
  view.waiting.clear();
  view.running = {going_on};
  EXPECT_EQ(sarathi_plan(view), "recompute 1 [32, 50) samples\n");
}

TEST(SarathiPolicy, ACachedPrefixIsAdopted) {
  View view = view_with_budget(8, 10);
  view.waiting = {waiting_seq(1, 50, 32)};
  EXPECT_EQ(sarathi_plan(view), "adopt 1 [0, 32)\npromise 1 4 cells on device\nprefill 1 [32, 40)\n");
}

TEST(SarathiPolicy, WaitsForBlocksThatAStepInFlightStillUses) {
  View view = view_with_budget(64, 0);
  view.steps_in_flight = 1;
  set_pinned(view, 1);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 30)};
  EXPECT_EQ(sarathi_plan(view), "decode 2 [29, 30) samples\n");
}

}  // namespace
}  // namespace kvasir::test
