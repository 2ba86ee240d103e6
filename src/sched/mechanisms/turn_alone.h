// A step of its own for a sequence whose transfers never end in time beside the rows of others.
//
// Where a sequence's history is staged, its rows are deferred when the link takes longer than the stall
// budget allows; a link that is simply slow would defer them for ever. So after some deferrals in a row the
// sequence runs alone, without a stall budget: the others wait longer than the budget once, and it does not
// starve.
#pragma once

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// A sequence that was deferred so many times in a row is due a step of its own.
constexpr uint32_t kDeferralsBeforeTurn = 4;

// Plans rows of the running sequence that was deferred most often, of those that are due a step and can run.
// Returns whether it planned any: then the plan is complete.
bool take_turn_alone(const View& view, PlanBuilder& builder);

}  // namespace kvasir
