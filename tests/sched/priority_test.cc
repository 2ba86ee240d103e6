// Plans of the priority policy, worked by hand. Blocks have 16 tokens; sequence n arrives at n nanoseconds.
#include <gtest/gtest.h>

#include "fakes/views.h"
#include "sched/mechanisms/aged_priority.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

std::string priority_plan(const View& view, const char* policy = "priority") {
  return plan_of(policy, view);
}

SeqView with(SeqView seq, int32_t priority) {
  seq.priority = priority;
  return seq;
}

TEST(AgedPriority, ALevelIsAHeadStart) {
  const SeqView zero = with(waiting_seq(5, 1), 0), two = with(waiting_seq(5, 1), 2);
  EXPECT_EQ(rank_of(zero, 10).first, 5);
  EXPECT_EQ(rank_of(two, 10).first, 25) << "as one of priority 0 that arrives 20 later";
  EXPECT_EQ(rank_of(two, 0).first, 2);
  SeqView late = zero;
  late.arrival = 26;
  EXPECT_LT(rank_of(two, 10), rank_of(late, 10));
  EXPECT_LT(rank_of(late, 0), rank_of(two, 0)) << "without ageing it would wait for all of these";
}

TEST(AgedPriority, LevelsAreCut) {
  const SeqView most = with(waiting_seq(5, 1), INT32_MAX), least = with(waiting_seq(5, 1), INT32_MIN);
  EXPECT_EQ(rank_of(most, 10).first, 5 + 10 * kMostLevels);
  EXPECT_EQ(rank_of(least, 10).first, 5 - 10 * kMostLevels);
  EXPECT_EQ(rank_of(least, 0).first, INT32_MIN) << "strict priorities are not";
}

TEST(AgedPriority, TheQueueGivesThemInOrder) {
  const std::vector<SeqView> seqs = {with(waiting_seq(1, 1), 2), waiting_seq(2, 1),
                                     with(waiting_seq(3, 1), 1), waiting_seq(4, 1),
                                     with(waiting_seq(5, 1), -1)};
  const auto sorted = by_rank(seqs, 0);
  RankQueue queue(seqs, 0);
  for (uint64_t want : {5, 2, 4, 3, 1}) {
    ASSERT_FALSE(queue.empty());
    EXPECT_EQ(raw(queue.front().seq->id), want);
    queue.pop();
  }
  EXPECT_TRUE(queue.empty());
  ASSERT_EQ(sorted.size(), 5u);
  EXPECT_EQ(raw(sorted.front()->id), 5u);
  EXPECT_EQ(raw(sorted.back()->id), 1u);
}

TEST(PriorityPolicy, TheLowerValueGoesFirstAndTiesByArrival) {
  View view = make_view(50, 4);
  view.waiting = {with(waiting_seq(1, 32), 1), waiting_seq(2, 16), waiting_seq(3, 16)};
  EXPECT_EQ(priority_plan(view),
            "promise 2 2 cells on device\npromise 3 2 cells on device\npromise 1 4 cells on device\n"
            "prefill 2 [0, 16) samples\nprefill 3 [0, 16) samples\nprefill 1 [0, 32) samples\n");
  view.device.spare_slabs = 3 * kViewGroups;
  view.waiting.push_back(with(waiting_seq(4, 1), 2));
  EXPECT_EQ(priority_plan(view),
            "promise 2 2 cells on device\npromise 3 2 cells on device\n"
            "prefill 2 [0, 16) samples\nprefill 3 [0, 16) samples\n")
      << "one block is not two, and 4 does not overtake 1";
}

TEST(PriorityPolicy, ARequestThatHasWaitedALevelsTimeLongerGoesFirst) {
  View view = make_view(50, 2);
  view.waiting = {with(waiting_seq(100, 32), 1), waiting_seq(300, 32)};
  for (SeqView& seq : view.waiting) seq.arrival *= kNanosPerSecond;
  EXPECT_EQ(priority_plan(view, "priority:ageing=250"),
            "promise 300 4 cells on device\nprefill 300 [0, 32) samples\n");
  EXPECT_EQ(priority_plan(view, "priority:ageing=150"),
            "promise 100 4 cells on device\nprefill 100 [0, 32) samples\n");
  EXPECT_EQ(priority_plan(view, "priority:ageing=0"),
            "promise 300 4 cells on device\nprefill 300 [0, 32) samples\n");
}

TEST(PriorityPolicy, TheLowestIsPreemptedForADecodeWhateverItsArrival) {
  // 2 and 3 need a block each. 1 came first, and has the highest value.
  View view = make_view(20, 0);
  view.running = {with(decoding_seq(1, 20, 30), 1), decoding_seq(2, 20, 33), decoding_seq(3, 20, 49)};
  EXPECT_EQ(priority_plan(view),
            "preempt 1\ndrop_all 1 kv device\n"
            "decode 2 [32, 33) samples\ndecode 3 [48, 49) samples\n");
}

TEST(PriorityPolicy, OfEqualOnesTheLatestArrivalIsPreempted) {
  View view = make_view(20, 0);
  view.running = {decoding_seq(3, 20, 30), decoding_seq(1, 20, 33), decoding_seq(2, 20, 49)};
  EXPECT_EQ(priority_plan(view),
            "preempt 3\ndrop_all 3 kv device\n"
            "decode 1 [32, 33) samples\ndecode 2 [48, 49) samples\n");
}

TEST(PriorityPolicy, AnUrgentPromptDisplacesTheLowestThatRuns) {
  View view = make_view(20, 1);
  view.running = {with(decoding_seq(1, 20, 30), 1), with(decoding_seq(2, 20, 30), 2),
                  with(decoding_seq(3, 20, 30), 1)};
  view.waiting = {with(waiting_seq(4, 30), 0), with(waiting_seq(5, 1), 0)};
  EXPECT_EQ(priority_plan(view),
            "preempt 2\ndrop_all 2 kv device\npromise 4 4 cells on device\n"
            "decode 1 [29, 30) samples\ndecode 3 [29, 30) samples\nprefill 4 [0, 30) samples\n")
      << "three blocks are free then; 5 waits, since the step preempts";
  view.waiting[0].priority = view.waiting[1].priority = 2;
  EXPECT_EQ(priority_plan(view),
            "decode 1 [29, 30) samples\ndecode 3 [29, 30) samples\ndecode 2 [29, 30) samples\n")
      << "none is displaced for a request of lower precedence";
}

TEST(PriorityPolicy, NoneIsDisplacedInVain) {
  View view = make_view(20, 1);
  view.running = {decoding_seq(1, 20, 30), with(decoding_seq(2, 20, 30), 2)};
  view.waiting = {with(waiting_seq(4, 64), 0)};
  EXPECT_EQ(priority_plan(view), "decode 1 [29, 30) samples\ndecode 2 [29, 30) samples\n")
      << "three are not four";
  view.waiting = {with(waiting_seq(4, 48), 0)};
  EXPECT_EQ(priority_plan(view),
            "preempt 2\ndrop_all 2 kv device\npromise 4 6 cells on device\n"
            "decode 1 [29, 30) samples\nprefill 4 [0, 48) samples\n");
}

TEST(PriorityPolicy, ARequestBeforeTheDisplacerKeepsTheBlockThatItNeeds) {
  // Of the three blocks that there would be, one is for the decode of 1.
  View view = make_view(20, 1);
  view.running = {with(decoding_seq(1, 20, 33), -1), with(decoding_seq(2, 20, 30), 2)};
  view.waiting = {with(waiting_seq(4, 48), 0)};
  EXPECT_EQ(priority_plan(view), "decode 1 [32, 33) samples\ndecode 2 [29, 30) samples\n");
  view.waiting = {with(waiting_seq(4, 32), 0)};
  EXPECT_EQ(priority_plan(view),
            "preempt 2\ndrop_all 2 kv device\npromise 4 4 cells on device\n"
            "decode 1 [32, 33) samples\nprefill 4 [0, 32) samples\n");
}

TEST(PriorityPolicy, ASlotIsMadeFreeToo) {
  View view = make_view(20, 10);
  view.limits.max_num_seqs = 2;
  view.running = {decoding_seq(1, 20, 30), with(decoding_seq(2, 20, 30), 2)};
  view.waiting = {with(waiting_seq(4, 5), 0)};
  EXPECT_EQ(priority_plan(view),
            "preempt 2\ndrop_all 2 kv device\npromise 4 2 cells on device\n"
            "decode 1 [29, 30) samples\nprefill 4 [0, 5) samples\n");
}

TEST(PriorityPolicy, WithAStepInFlightTheDisplacerComesWhenTheBlocksDo) {
  View view = make_view(20, 0);
  view.steps_in_flight = 1;
  view.running = {decoding_seq(1, 20, 30), with(decoding_seq(2, 20, 30), 2),
                  with(decoding_seq(3, 20, 30), 3)};
  view.waiting = {with(waiting_seq(4, 5), 0)};
  EXPECT_EQ(priority_plan(view),
            "preempt 3\ndrop_all 3 kv device\n"
            "decode 1 [29, 30) samples\ndecode 2 [29, 30) samples\n");
  set_pinned(view, 2);
  view.running.pop_back();
  EXPECT_EQ(priority_plan(view), "decode 1 [29, 30) samples\ndecode 2 [29, 30) samples\n")
      << "and no other is";
}

TEST(PriorityPolicy, ChunksGoByRankToo) {
  View view = make_view(50, 30);
  view.limits.max_num_batched_tokens = 64;
  SeqView half = with(running_seq(1, 100, 100, 32), 1);
  half.promised_cells[0] = 5 * kViewGroups;
  set_promised(view, 5);
  view.running = {half};
  view.waiting = {with(waiting_seq(2, 40), 2), with(waiting_seq(3, 40), 0)};
  EXPECT_EQ(priority_plan(view),
            "promise 3 6 cells on device\nprefill 3 [0, 40) samples\nprefill 1 [32, 56)\n")
      << "the urgent prompt does not wait for the long one's last chunk";
  view.limits.long_prefill_token_threshold = 20;
  EXPECT_EQ(priority_plan(view),
            "promise 3 6 cells on device\npromise 2 6 cells on device\n"
            "prefill 3 [0, 20)\nprefill 1 [32, 52)\nprefill 2 [0, 20)\n");
}

TEST(PriorityPolicy, KeepsAWatermarkOfOnePercent) {
  View view = make_view(300, 4);
  view.running = {decoding_seq(1, 20, 30)};
  view.waiting = {waiting_seq(2, 17)};  // 2 blocks, and 3 of 300 are to stay
  EXPECT_EQ(priority_plan(view), "decode 1 [29, 30) samples\n");
  view.device.spare_slabs = 5 * kViewGroups;
  EXPECT_EQ(priority_plan(view),
            "promise 2 4 cells on device\ndecode 1 [29, 30) samples\nprefill 2 [0, 17) samples\n");
}

TEST(PriorityPolicy, AtAStandstillTheLowestGivesWay) {
  View view = make_view(8, 0);
  view.running = {with(running_seq(1, 100, 100, 64), 1), running_seq(2, 100, 100, 64)};
  EXPECT_EQ(priority_plan(view), "preempt 1\ndrop_all 1 kv device\n");
}

}  // namespace
}  // namespace kvasir::test
