// What a policy plans, as text, if the checker allows it.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "contract/policy.h"
#include "fakes/views.h"
#include "plan/plan_checker.h"
#include "sched/registry.h"

namespace kvasir::test {

inline std::string plan_of(Policy& policy, const View& view) {
  const StepPlan plan = policy.plan(view);
  const Status status = check_plan(view, plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return to_string(plan);
}

// Of a new policy of that name.
inline std::string plan_of(const char* policy, const View& view) {
  return plan_of(*make_policy(policy).value(), view);
}

}  // namespace kvasir::test
