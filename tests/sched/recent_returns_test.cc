// Requests that have just returned, and plans in which that decides, by hand.
#include "sched/mechanisms/recent_returns.h"

#include <gtest/gtest.h>

#include <string>

#include "sched/auto_state_parts.h"
#include "sched/auto_views.h"
#include "sched/mechanisms/response_ratio.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

TEST(RecentReturns, CountForEightStepsOrUntilTheEnd) {
  RecentReturns returns;
  returns.begin(StepId{100});
  EXPECT_FALSE(returns.just_returned(SeqId{1}, 50));
  returns.note(SeqId{1});
  EXPECT_TRUE(returns.just_returned(SeqId{1}, 50));
  EXPECT_FALSE(returns.just_returned(SeqId{2}, 50));
  returns.begin(StepId{104});
  EXPECT_TRUE(returns.just_returned(SeqId{1}, 5));
  EXPECT_FALSE(returns.just_returned(SeqId{1}, 4)) << "it was believed to have ended";
  returns.begin(StepId{107});
  EXPECT_TRUE(returns.just_returned(SeqId{1}, 50));
  returns.begin(StepId{108});
  EXPECT_FALSE(returns.just_returned(SeqId{1}, 50));
}

TEST(RecentReturns, TheLastReturnCounts) {
  RecentReturns returns;
  returns.begin(StepId{1});
  returns.note(SeqId{1});
  returns.begin(StepId{7});
  returns.note(SeqId{1});
  returns.begin(StepId{14});
  EXPECT_TRUE(returns.just_returned(SeqId{1}, 50));
}

TEST(RecentReturns, TheStateComesBack) {
  RecentReturns returns, other;
  returns.begin(StepId{9});
  returns.note(SeqId{4});
  returns.begin(StepId{12});
  returns.note(SeqId{2});
  EXPECT_EQ(returns.save(), "12 4 9 2 12");
  ASSERT_TRUE(other.restore(returns.save()).ok());
  EXPECT_EQ(other.save(), returns.save());
  EXPECT_TRUE(other.just_returned(SeqId{4}, 50));
  for (const char* bad : {"", "x", "12 4", "12 4 13", "12 4 9 2 8"}) {
    EXPECT_FALSE(other.restore(bad).ok()) << bad;
  }
}

std::string plan_after_return_of(uint64_t id, const View& view) {
  return plan_of(
      *auto_with(AutoPart::kReturns, std::to_string(raw(view.next_step)) + " " + std::to_string(id) + " " +
                                         std::to_string(raw(view.next_step))),
      view);
}

// As in AutoPolicy.TheMostExpensiveGivesUpItsMemory.
TEST(AutoReturns, OneThatHasJustReturnedIsNotPreemptedFirst) {
  View view = auto_view(50, 0);
  view.running = {auto_decoding(1, 20, 30, 0.01, {}), auto_decoding(2, 20, 30, 0.01, {}, 500),
                  auto_decoding(3, 20, 33, 0.01, {}, 20)};
  EXPECT_EQ(plan_of("auto", view).substr(0, 10), "preempt 2\n");
  EXPECT_EQ(plan_after_return_of(2, view).substr(0, 10), "preempt 1\n");
}

TEST(AutoReturns, ALateOneThatHasJustReturnedDoesNotMakeWay) {
  View view = auto_view(50, 0);
  view.running = {auto_decoding(1, 20, 30, 0.01, {.ttft_ms = 50}, 400)};
  view.waiting = {auto_waiting(2, 16, 0.01, {.ttft_ms = 1000}, 20)};
  EXPECT_EQ(plan_of("auto", view).substr(0, 10), "preempt 1\n");
  EXPECT_EQ(plan_after_return_of(1, view), "decode 1 [29, 30) samples\n");
}

// A device that has been short of nothing: finishing costs 1 ms for each token that is left and 1 us for each
// token in each step. A step of the three takes 23.1 ms.
//   1: 37 tokens are left: 37 ms + 1.9 ms; alone 40 ms + 50 steps, 1.2 s; 1 s old, so it is worth 1.84: 21 ms
//   2: 50 tokens are left: 50 ms + 2.8 ms; alone 40 ms + 60 steps, 1.4 s; 1 s old, so it is worth 1.7: 31 ms
//      and where it is 3 s old it is worth 3.1: 17 ms
TEST(AutoReturns, WithoutBoundsTheOldestIsWorthMore) {
  View view = auto_view(50, 0);
  view.running = {auto_decoding(1, 20, 33, 0.01, {}), auto_decoding(2, 20, 30, 0.01, {}, 60),
                  auto_decoding(3, 20, 33, 0.01, {}, 20)};
  EXPECT_EQ(plan_of("auto", view).substr(0, 10), "preempt 2\n");
  view.running[1].arrival = view.now - from_seconds(3);
  EXPECT_EQ(plan_of("auto", view).substr(0, 10), "preempt 1\n");
  EXPECT_DOUBLE_EQ(worth_by_response_ratio(2, 3, 1.5), 6);
}

}  // namespace
}  // namespace kvasir::test
