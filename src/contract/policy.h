// What to do next: a function from what is known now to the copies and rows wanted next.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "contract/step_plan.h"
#include "contract/view.h"

namespace kvasir {

// Deterministic in the views it has seen and in its saved state. It owns no memory of the cache, starts
// nothing and blocks on nothing. Called by one thread. Those of sched/ derive from BatchPolicy
// (sched/batch_policy.h).
class Policy {
 public:
  virtual ~Policy() = default;

  virtual StepPlan plan(const View& view) = 0;

  // All that plan() depends on beside the view; goes into the plan log. "" when there is nothing.
  virtual std::string save_state() const { return {}; }
  virtual Status restore_state(std::string_view state) {
    if (state.empty()) return {};
    return error(ErrorCode::kInvalidArgument, "the policy keeps no state, but the log holds '{}'", state);
  }
};

}  // namespace kvasir
