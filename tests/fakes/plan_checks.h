// What the checker says of a plan.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "plan/plan_builder.h"
#include "plan/plan_checker.h"

namespace kvasir::test {

// The builder's plan as text; the checker allows it.
inline std::string checked(const View& view, PlanBuilder& builder) {
  const StepPlan plan = builder.take();
  const Status status = check_plan(view, plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return to_string(plan);
}

inline void expect_broken(const View& view, const StepPlan& plan, const std::string& message) {
  const Status status = check_plan(view, plan);
  ASSERT_FALSE(status.ok()) << to_string(plan);
  EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
}

}  // namespace kvasir::test
