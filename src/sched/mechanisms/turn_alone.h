// A step of its own for a sequence whose transfers never come in time beside others.
//
// Where a sequence's history is staged, its rows are deferred when the link takes longer than the stall
// budget allows; a link that is simply slow would defer them for ever. So after some deferrals in a row it
// runs alone, when no stall budget holds: the others wait longer than the budget once, and the sequence does
// not starve.
#pragma once

#include "contract/plan_builder.h"
#include "contract/view.h"

namespace kvasir {

// So many deferrals in a row earn a sequence a step.
constexpr uint32_t kDeferralsBeforeTurn = 4;

// Plans rows of the running sequence that was deferred most often, if one has earned a step and can run. True
// if it was: the plan is complete.
bool take_turn_alone(const View& view, PlanBuilder& builder);

}  // namespace kvasir
