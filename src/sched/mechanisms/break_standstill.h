// Breaks a standstill: no sequence can run, because each holds memory that another one needs.
//
// Rows that were deferred, or whose copies were lost, are planned again without the room that had been
// promised for them. So partly computed prompts may come to wait for one another's memory.
#pragma once

#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Whether the plan so far makes no progress, and none will come from elsewhere (help_may_come()). Stricter
// than the rule for complete plans (plan/plan_checker.h): a smaller shared reserve does not count as
// progress, nor does waiting for an answer of peers that lend nothing.
bool stands_still(const View& view, const PlanBuilder& builder);

// Ends the shared reserves, and preempts the last of the `running` sequences that can be stopped: it drops
// its cells. If none can be stopped, the last arrival among the waiting sequences that hold cells drops them.
// REQUIRES: stands_still()
void break_standstill(const View& view, const std::vector<const SeqView*>& running, PlanBuilder& builder);

}  // namespace kvasir
