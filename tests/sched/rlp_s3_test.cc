// Plans of the policies that keep room by a prediction, worked by hand. Blocks have 16 tokens, two cells
// each.
#include <gtest/gtest.h>

#include <string>

#include "fakes/views.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

SeqView predicted(SeqView s, uint32_t output, uint32_t max_output = 400) {
  s.predicted.output_tokens = output;
  s.max_total_tokens = s.prompt_tokens + max_output;
  return s;
}

SeqView with_promise(SeqView s, uint32_t blocks, View& view) {
  s.promised_cells[0] = blocks * kViewGroups;
  view.device.promised[0] += blocks * kViewGroups;
  return s;
}

TEST(RlpPolicy, KeepsRoomForThePredictionAndAHundredTokens) {
  View view = view_with_budget(512, 50);
  view.waiting = {predicted(waiting_seq(1, 20), 40)};  // 160 tokens
  EXPECT_EQ(plan_of("rlp", view), "promise 1 20 cells on device\nprefill 1 [0, 20) samples\n");
  EXPECT_EQ(plan_of("rlp:padding=0", view), "promise 1 8 cells on device\nprefill 1 [0, 20) samples\n");
  view.waiting[0].max_total_tokens = 100;
  EXPECT_EQ(plan_of("rlp", view), "promise 1 14 cells on device\nprefill 1 [0, 20) samples\n");
}

TEST(RlpPolicy, TheFirstAndThenThoseLikeIt) {
  View view = view_with_budget(60, 50);
  view.waiting = {predicted(waiting_seq(1, 20), 40), predicted(waiting_seq(2, 20), 390),
                  predicted(waiting_seq(3, 20), 120), predicted(waiting_seq(4, 20), 45)};
  EXPECT_EQ(plan_of("rlp", view),
            "promise 1 20 cells on device\npromise 4 22 cells on device\npromise 3 30 cells on device\n"
            "prefill 1 [0, 20) samples\nprefill 4 [0, 20) samples\nprefill 3 [0, 20) samples\n");
}

TEST(RlpPolicy, ARequestThatNeedsMoreThanPromisedIsRecomputedWhenThereIsRoom) {
  View view = view_with_budget(512, 4);
  view.running = {predicted(decoding_seq(1, 20, 33), 10),
                  with_promise(predicted(decoding_seq(2, 20, 33), 100), 1, view)};
  view.device.spare_slabs = 2;
  EXPECT_EQ(plan_of("rlp", view), "preempt 1\ndrop_all 1 kv device\ndecode 2 [32, 33) samples\n");
  // 33 tokens and a hundred: nine blocks.
  view = view_with_budget(512, 9);
  view.waiting = {predicted(waiting_seq(1, 20), 10)};
  view.waiting[0].known_tokens = 33;
  EXPECT_EQ(plan_of("rlp", view), "promise 1 18 cells on device\nprefill 1 [0, 33) samples\n");
}

TEST(RlpPolicy, OrdersOfWhomToPreemptForARequestThatNeedsMore) {
  View view = view_with_budget(512, 0);
  // The first needs a block, and asks for 33 + 10 tokens: three. The second has the least memory, the third
  // the most to come (280), and the fourth came last.
  view.running = {predicted(decoding_seq(1, 20, 33), 10), predicted(decoding_seq(2, 20, 24), 100),
                  predicted(decoding_seq(3, 100, 120), 300), predicted(decoding_seq(4, 40, 50), 20)};
  const std::string one = "decode 1 [32, 33) samples\n", two = "decode 2 [23, 24) samples\n",
                    three = "decode 3 [119, 120) samples\n", four = "decode 4 [49, 50) samples\n",
                    more = "promise 1 2 cells on device\n";
  EXPECT_EQ(plan_of("rlp:padding=10", view), "preempt 1\ndrop_all 1 kv device\n" + two + three + four);
  EXPECT_EQ(plan_of("rlp:padding=10:victim=fcfs", view),
            "preempt 4\ndrop_all 4 kv device\n" + more + one + two + three);
  EXPECT_EQ(plan_of("rlp:padding=10:victim=srtf", view),
            "preempt 3\ndrop_all 3 kv device\n" + more + one + two + four);
  EXPECT_EQ(plan_of("rlp:padding=10:victim=lkvo", view),
            "preempt 2\ndrop_all 2 kv device\n" + more + one + three + four);
  // What is free comes first.
  view.device.spare_slabs = 2;
  EXPECT_EQ(plan_of("rlp:padding=10:victim=lkvo", view), more + one + two + three + four);
}

TEST(S3Policy, KeepsTheUpperEndOfTheBucketAndPacksTheLargestFirst) {
  View view = view_with_budget(512, 14);
  view.waiting = {predicted(waiting_seq(1, 20), 40), predicted(waiting_seq(2, 20), 120),
                  predicted(waiting_seq(3, 20), 51)};
  // 70, 170 and 120 tokens: 5, 11 and 8 blocks. Beside the largest the second has no room, and the smallest
  // neither; where it has, it passes by.
  EXPECT_EQ(plan_of("s3", view), "promise 2 22 cells on device\nprefill 2 [0, 20) samples\n");
  view = view_with_budget(512, 16);
  view.waiting = {predicted(waiting_seq(1, 20), 40), predicted(waiting_seq(2, 20), 120),
                  predicted(waiting_seq(3, 20), 51)};
  EXPECT_EQ(plan_of("s3", view),
            "promise 2 22 cells on device\npromise 1 10 cells on device\n"
            "prefill 2 [0, 20) samples\nprefill 1 [0, 20) samples\n");
}

TEST(S3Policy, ARequestThatOverrunsIsSwappedOutAndAsksForTwiceAsMuch) {
  View view = view_with_budget(512, 4);
  set_host(view, 20, 20);
  view.running = {predicted(decoding_seq(1, 20, 81), 30)};  // 61 generated: the 50 are used up
  EXPECT_EQ(plan_of("s3", view),
            "preempt 1\nadd 1 [0, 80) kv host x2 now\ndrop 1 [0, 80) kv device x2 when_ready\n");
  view = view_with_budget(512, 9);
  view.waiting = {predicted(waiting_seq(1, 20), 30)};
  view.waiting[0].known_tokens = 81;  // 20 and a hundred
  EXPECT_EQ(plan_of("s3", view), "promise 1 16 cells on device\nprefill 1 [0, 81) samples\n");
}

// A prediction of 40 tokens that 61 have outlived: 31 more are expected, half of what is there.
TEST(LengthsBySurvival, AreThoseOfWhatIsLeft) {
  View view = view_with_budget(512, 50);
  view.waiting = {predicted(waiting_seq(1, 20), 40)};
  view.waiting[0].known_tokens = 20 + 61;
  // 20 + 61 + 31 + 100 tokens: 14 blocks; without it 20 + 61 + 100: 12.
  EXPECT_EQ(plan_of("rlp:survival=on", view), "promise 1 28 cells on device\nprefill 1 [0, 81) samples\n");
  EXPECT_EQ(plan_of("rlp", view), "promise 1 24 cells on device\nprefill 1 [0, 81) samples\n");
  // 92 tokens of output lie in the third bucket of 31, 40 in the second, in which one token is left.
  EXPECT_EQ(plan_of("s3:survival=on:bucket=31", view),
            "promise 1 16 cells on device\nprefill 1 [0, 81) samples\n");
  EXPECT_EQ(plan_of("s3:bucket=31", view), "promise 1 12 cells on device\nprefill 1 [0, 81) samples\n");
}

}  // namespace
}  // namespace kvasir::test
