// Calls in loans that are due.
//
// Source: CacheOpt, section 3.3.1 (embedding): a guest that has not ended when its host reaches the space
// that it lent is preempted. Used by every policy that lends promised memory.
#pragma once

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Preempts the running sequences whose loan is due, that is, whose host has reached the agreed length. They
// drop their cells. Called before any rows are planned. Returns the number of preemptions.
uint32_t recall_loans(const View& view, PlanBuilder& builder);

}  // namespace kvasir
