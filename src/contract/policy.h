// The interface of policies: a function from the view of now to the plan of the next step.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "contract/step_plan.h"
#include "contract/view.h"

namespace kvasir {

// A policy is deterministic in the views it has seen and in its saved state. It owns no memory of the cache,
// starts nothing and blocks on nothing. Called by one thread. Policies in sched/ derive from BatchPolicy
// (sched/batch_policy.h).
class Policy {
 public:
  virtual ~Policy() = default;

  virtual StepPlan plan(const View& view) = 0;

  // Everything besides the view that plan() depends on, for the plan log. "": nothing.
  virtual std::string save_state() const { return {}; }
  virtual Status restore_state(std::string_view state) {
    if (state.empty()) return {};
    return error(ErrorCode::kInvalidArgument, "the policy keeps no state, but the log holds '{}'", state);
  }
};

}  // namespace kvasir
