// The way out when no sequence can run, because each holds memory that another one lacks.
//
// Rows that were deferred, or whose copies were lost, are planned again without the room that had been
// promised for them; so prompts that are computed in part may come to wait for one another's memory.
#pragma once

#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// The plan so far moves nothing forward, and nothing else will (help_may_come()). Stricter than the rule for
// a plan that is done (plan/plan_checker.h): a shared reserve that became smaller does not count as progress,
// nor does waiting for an answer of peers that lend nothing.
bool stands_still(const View& view, const PlanBuilder& builder);

// Ends the shared reserves, and preempts the last of the `running` sequences that can be stopped, by dropping
// its cells. Where none can, the waiting sequence that arrived last of those that hold cells drops them.
// REQUIRES: stands_still()
void break_standstill(const View& view, const std::vector<const SeqView*>& running, PlanBuilder& builder);

}  // namespace kvasir
