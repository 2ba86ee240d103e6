// One plan of the policy `auto`.
#pragma once

#include "contract/view.h"
#include "plan/plan_builder.h"
#include "sched/policies/auto_state.h"

namespace kvasir {

// Plans a step, and notes in `state` what the plans after it need. False: rows of the step wait for the link,
// so that its time says nothing of the device.
bool plan_auto_step(const View& view, const AutoOptions& options, AutoState& state, PlanBuilder& builder);

}  // namespace kvasir
