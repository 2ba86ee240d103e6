// The mechanisms that several policies share, one at a time. Blocks have 16 tokens.
#include <gtest/gtest.h>

#include "fakes/views.h"
#include "plan/plan_checker.h"
#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/recall_loans.h"
#include "sched/mechanisms/swap_in.h"
#include "sched/mechanisms/turn_alone.h"

namespace kvasir::test {
namespace {

// ---------------------------------------------------------------- recall_loans

TEST(RecallLoans, PreemptsAGuestWhenItsHostNeedsTheSpaceThatItLent) {
  View view = make_view(20, 5);
  view.running = {decoding_seq(1, 20, 30), decoding_seq(2, 20, 30), decoding_seq(3, 20, 30)};
  view.claims = {{SeqId{2}, SeqId{1}, 3, 30}, {SeqId{3}, SeqId{1}, 3, 31}, {SeqId{1}, SeqId{2}, 3, 0}};
  PlanBuilder b(view);
  EXPECT_EQ(recall_loans(view, b), 1u);
  EXPECT_TRUE(b.preempted(SeqId{2}));
  for (size_t i : {0, 2}) EXPECT_TRUE(b.decode(view.running[i]));
  EXPECT_TRUE(check_plan(view, b.take()).ok());
  view.claims[0].called = true;
  PlanBuilder again(view);
  EXPECT_EQ(recall_loans(view, again), 0u);
}

// ---------------------------------------------------------------- parties to promises

TEST(Mechanisms, APartyToAPromiseIsNotPreempted) {
  View view = make_view(20, 0);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 30), decoding_seq(3, 20, 30)};
  view.running[1].promised_cells[0] = 2;
  view.device.spare_slabs = 2;
  set_promised(view, 1);
  PlanBuilder b(view);
  ASSERT_TRUE(b.lend(view.running[1], view.running[2], 2, 40));
  EXPECT_EQ(decode_or_preempt(by_arrival(view.running), b), 0u) << "1 sits the step out";
  EXPECT_TRUE(check_plan(view, b.take()).ok());
}

// ---------------------------------------------------------------- swap_in

TEST(SwapIn, BringsThemBackInOrderWhileThereIsRoom) {
  View view = make_view(20, 7);
  view.waiting = {swapped_seq(1, 20, 40, 39), waiting_seq(2, 10), swapped_seq(3, 20, 40, 39),
                  swapped_seq(4, 5, 6, 5)};
  EXPECT_TRUE(any_swapped_out(view));
  PlanBuilder b(view);
  EXPECT_EQ(swap_in(view, 1, b), 2u) << "a third would leave none of the blocks that are to stay";
  EXPECT_EQ(b.available_blocks(), 1);
  const StepPlan plan = b.take();
  EXPECT_TRUE(check_plan(view, plan).ok());
  EXPECT_EQ(to_string(plan),
            "add 1 [0, 39) kv device x2 before_layer\nadd 3 [0, 39) kv device x2 before_layer\n"
            "decode 1 [39, 40) samples\ndecode 3 [39, 40) samples\n");
  view.waiting = {waiting_seq(2, 10)};
  EXPECT_FALSE(any_swapped_out(view));
}

TEST(SwapIn, NoneOvertakesButOneThatCannotRunIsPassedOver) {
  View view = make_view(20, 4);
  view.running = {decoding_seq(9, 20, 30)};
  view.waiting = {swapped_seq(1, 80, 90, 80), swapped_seq(2, 5, 6, 5)};  // five blocks, and one
  PlanBuilder b(view);
  EXPECT_EQ(swap_in(view, 0, b), 0u);
  view.waiting[0].stalled = true;
  PlanBuilder c(view);
  EXPECT_EQ(swap_in(view, 0, c), 1u);
}

TEST(SwapIn, APromptThatWasCutShortGoesOnWithinTheBudget) {
  View view = make_view(20, 20);
  view.limits.max_num_batched_tokens = 30;
  view.waiting = {swapped_seq(1, 100, 100, 40), swapped_seq(2, 100, 100, 40)};
  PlanBuilder b(view);
  EXPECT_EQ(swap_in(view, 0, b), 2u);
  const StepPlan plan = b.take();
  ASSERT_EQ(plan.rows.size(), 2u);
  EXPECT_EQ(plan.rows[0].tokens, (Interval{40, 70}));
  EXPECT_EQ(plan.rows[1].tokens, (Interval{40, 41})) << "the budget is used up, but it runs";
  EXPECT_TRUE(check_plan(view, plan).ok());
}

TEST(SwapIn, ItsHistoryIsNotStagedSoThatTheRingDoesNotMatter) {
  View view = make_view(20, 20);
  set_ring(view, 0);
  view.waiting = {swapped_seq(1, 20, 40, 39)};
  PlanBuilder b(view);
  EXPECT_EQ(swap_in(view, 0, b), 1u);
}

// ---------------------------------------------------------------- turn_alone

TEST(TurnAlone, GoesToTheOneThatWasDeferredMostOften) {
  View view = make_view(20, 20);
  set_ring(view, 20);
  view.running = {streaming_seq(1, 100, 121, 120), streaming_seq(2, 100, 121, 120), decoding_seq(3, 20, 30)};
  view.running[0].deferrals = kDeferralsBeforeTurn - 1;
  PlanBuilder none(view);
  EXPECT_FALSE(take_turn_alone(view, none));
  EXPECT_TRUE(none.take().rows.empty());

  view.running[0].deferrals = kDeferralsBeforeTurn;
  view.running[1].deferrals = kDeferralsBeforeTurn + 1;
  PlanBuilder b(view);
  ASSERT_TRUE(take_turn_alone(view, b));
  const StepPlan plan = b.take();
  ASSERT_EQ(plan.rows.size(), 1u);
  EXPECT_EQ(plan.rows[0].seq, SeqId{2});

  view.running[1].stalled = true;
  PlanBuilder other(view);
  ASSERT_TRUE(take_turn_alone(view, other));
  EXPECT_EQ(other.take().rows[0].seq, SeqId{1});

  view.stage_blocks = 6;  // seven are to be staged
  PlanBuilder no_room(view);
  EXPECT_FALSE(take_turn_alone(view, no_room));
}

TEST(TurnAlone, APromptTakesTheBudget) {
  View view = make_view(20, 20);
  set_ring(view, 20);
  view.limits.max_num_batched_tokens = 12;
  view.running = {streaming_seq(1, 100, 100, 40)};
  view.running[0].deferrals = kDeferralsBeforeTurn;
  PlanBuilder b(view);
  ASSERT_TRUE(take_turn_alone(view, b));
  EXPECT_EQ(b.planned_tokens(), 12u);
}

// ---------------------------------------------------------------- continue_running

TEST(ContinueRunning, DecodesFirstThenFinishesPromptsInOrderOfArrival) {
  View view = make_view(20, 3);
  view.running = {running_seq(3, 60, 60, 40), decoding_seq(4, 20, 30), running_seq(2, 60, 60, 48)};
  EXPECT_TRUE(any_prefilling(view));
  PlanBuilder b(view);
  EXPECT_EQ(continue_running(view, b, PreemptBy::kRecompute), 0u);
  EXPECT_EQ(to_string(b.take()),
            "decode 4 [29, 30) samples\nprefill 2 [48, 60) samples\nprefill 3 [40, 60) samples\n");
}

TEST(ContinueRunning, OneThatWaitsForItsTransferIsLeftOutAndNoneIsPreempted) {
  View view = make_view(20, 0);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 30)};
  view.running[0].stalled = true;
  view.transfers_in_flight = 1;
  PlanBuilder b(view);
  EXPECT_EQ(continue_running(view, b, PreemptBy::kSwap), 0u);
  EXPECT_EQ(to_string(b.take()), "decode 2 [29, 30) samples\n");
  EXPECT_FALSE(any_prefilling(view));
}

}  // namespace
}  // namespace kvasir::test
