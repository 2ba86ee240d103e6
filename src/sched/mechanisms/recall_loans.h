// Calls loans in that have come due.
//
// Source: CacheOpt, section 3.3.1 (embedding): a guest that is not done when its host comes to the space that
// it lent is preempted. Used by every policy that lends promised memory.
#pragma once

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Preempts, by dropping their cells, the running sequences whose loan is due: the known length of their host
// has come to what was agreed. Before any rows are planned. Returns how many were preempted.
uint32_t recall_loans(const View& view, PlanBuilder& builder);

}  // namespace kvasir
