// What the policy `auto` makes of weights, worked by hand. Costs: sched/auto_views.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "sched/auto_state_parts.h"
#include "sched/auto_views.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

TEST(AutoWeights, TheShortestForItsWorthGoesFirst) {
  View view = auto_view(40, 40);
  view.waiting = {auto_waiting(1, 64, 0.02, {.ttft_ms = 9000}), auto_waiting(2, 16, 0.01, {.ttft_ms = 9000})};
  EXPECT_EQ(plan_of("auto", view).find("promise 2"), 0u);
  view.waiting[0].weight = 2;  // 64 / 2 > 16
  EXPECT_EQ(plan_of("auto", view).find("promise 2"), 0u);
  view.waiting[0].weight = 8;
  EXPECT_EQ(plan_of("auto", view).find("promise 1"), 0u);
}

TEST(AutoWeights, TheLargestForItsWorthIsDropped) {
  // Memory is short: each costs (20 ms / 640 + 1 us)(32 * 20 + 200) + 20 + 32 ms = 79 ms, so in the 100 ms
  // until both are due there is time for one; and there is room for one.
  View view = auto_view(40, 3);
  view.running = {auto_decoding(9, 20, 30, 0.01, {})};
  view.waiting = {auto_waiting(1, 32, 0.4, {.ttft_ms = 500}, 20),
                  auto_waiting(2, 32, 0.4, {.ttft_ms = 500}, 20)};
  const auto plan = [&] { return plan_of(*auto_with(AutoPart::kShortages, "1 0"), view); };
  EXPECT_NE(plan().find("prefill 1"), std::string::npos) << plan();
  EXPECT_EQ(plan().find("prefill 2"), std::string::npos) << plan();
  view.waiting[1].weight = 2;
  EXPECT_NE(plan().find("prefill 2"), std::string::npos) << plan();
  EXPECT_EQ(plan().find("prefill 1"), std::string::npos) << plan();
}

TEST(AutoWeights, TheMostExpensiveForItsWorthGivesUpItsMemory) {
  // What is left costs 37 rows and 1.9 ms; 390 rows and 87.7 ms; 10 rows and 0.3 ms. 1 needs a block.
  View view = auto_view(50, 0);
  view.running = {auto_decoding(1, 20, 33, 0.01, {}), auto_decoding(2, 20, 30, 0.01, {}, 400),
                  auto_decoding(3, 20, 30, 0.01, {}, 20)};
  EXPECT_EQ(plan_of("auto", view).find("preempt 2\n"), 0u);
  view.running[1].weight = 8;
  EXPECT_EQ(plan_of("auto", view).find("preempt 2\n"), 0u);
  view.running[1].weight = 16;
  EXPECT_EQ(plan_of("auto", view).find("preempt 1\n"), 0u);
}

TEST(AutoWeights, ALateOneThatIsWorthMuchDoesNotMakeWay) {
  View view = auto_view(50, 0);
  view.running = {auto_decoding(1, 20, 30, 0.01, {.ttft_ms = 50}, 400)};
  view.waiting = {auto_waiting(2, 16, 0.01, {.ttft_ms = 1000}, 20)};
  EXPECT_EQ(plan_of("auto", view).find("preempt 1\n"), 0u);
  view.running[0].weight = 1.0f / 16;  // less than the first that waits: 478 ms * 16 and 37 ms
  view.waiting[0].weight = 1.0f / 16;
  EXPECT_EQ(plan_of("auto", view).find("preempt 1\n"), 0u) << "weights that are alike are as none";
  view.running[0].weight = 16;
  EXPECT_EQ(plan_of("auto", view).find("preempt"), std::string::npos);
}

TEST(AutoWeights, LateOnesHaveTheirTurnsOnCreditByTheirShares) {
  View view = auto_view(50, 4);
  view.running = {auto_decoding(9, 20, 30, 0.01, {})};
  const Slo slo{.ttft_ms = 500};
  view.waiting = {auto_waiting(1, 48, 3, slo), auto_waiting(2, 48, 2.5, slo), auto_waiting(3, 48, 2, slo)};
  view.waiting[1].weight = view.waiting[2].weight = 4;
  const auto plan = [&](const std::string& turns) {
    const auto policy = auto_with(AutoPart::kTurns, turns);
    set_part(*policy, AutoPart::kCredit, kAmpleCredit);
    return plan_of(*policy, view);
  };
  EXPECT_NE(plan("").find("prefill 1"), std::string::npos) << "at first by arrival";
  EXPECT_NE(plan("1 3 1 4 2 1").find("prefill 2"), std::string::npos) << "the first of those with less";
  EXPECT_NE(plan("1 3 1 4 4 1").find("prefill 1"), std::string::npos);
}

TEST(AutoWeights, ATurnIsCountedForItsWeight) {
  View view = auto_view(50, 40);
  view.waiting = {auto_waiting(1, 48, 3, {.ttft_ms = 500}, 20)};
  view.waiting[0].weight = 4;
  const auto policy = auto_with(AutoPart::kCredit, kAmpleCredit);
  EXPECT_NE(plan_of(*policy, view).find("prefill 1"), std::string::npos);
  // 98.2 ms by 4 (AutoReasons.TheFirstOfTheLateWaitsOnCredit).
  EXPECT_NE(policy->save_state().find("; 4 0.0245"), std::string::npos) << policy->save_state();
}

TEST(AutoWeights, WhatIsWorthMoreThanTheOthersKeepsItsGap) {
  // With gaps of 25 ms a step has 2 rows, with gaps of a second hundreds: and a request in a hundred needs
  // it.
  View view = auto_view(500, 500);
  view.now = kAutoNow;
  for (uint64_t id = 1; id <= 60; ++id)
    view.waiting.push_back(auto_waiting(id, 16, 0.5, {.tbt_ms = 1000}, 400));
  view.waiting[0].slo.tbt_ms = 25;
  const auto gives_up = [&] {
    const StepPlan plan = make_policy("auto").value()->plan(view);
    for (const Reason& reason : plan.reasons) {
      if (reason.cause == Cause::kLeastGap && reason.a == 1) return true;
    }
    return false;
  };
  EXPECT_TRUE(gives_up());
  view.waiting[0].weight = 1000;
  EXPECT_FALSE(gives_up());
}

}  // namespace
}  // namespace kvasir::test
