// The way out when no sequence can run: each holds what another lacks.
//
// Rows that were deferred, or whose copies were lost, are planned again without the promise that they had; so
// prompts that are computed in part may come to wait for one another's memory.
#pragma once

#include <vector>

#include "contract/plan_builder.h"
#include "contract/view.h"

namespace kvasir {

// If the plan does nothing and nothing is in flight that could change that, preempts the running sequence
// that arrived last, by dropping its cells; where none runs, the waiting one that arrived last of those that
// hold cells drops them. The shared reserves end. The last of a policy's calls.
void break_standstill(const View& view, PlanBuilder& builder);
// The same where not the arrival decides: of those that run the last in `running` gives way.
void break_standstill(const View& view, const std::vector<const SeqView*>& running, PlanBuilder& builder);

}  // namespace kvasir
