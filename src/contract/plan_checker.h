// Judges a plan against the view that it was made from. Always on in tests and debug builds; the engine can
// run it in a release too.
#pragma once

#include "base/status.h"
#include "contract/step_plan.h"
#include "contract/view.h"

namespace kvasir {

// Ok if the plan can be committed and moves the work forward:
//  - it names sequences of the view, each in a state that allows what is asked;
//  - every row's history is covered: rows begin where the ready or adopted tokens, or earlier rows, end;
//  - new blocks, adopted idle blocks and outstanding promises fit in what is free or given up;
//  - no more sequences run than the limits allow (the budget of tokens is a policy's aim, not
//    a rule: a prompt larger than it may go alone);
//  - if there is work and nothing is in flight, the plan runs, preempts, drops or fails something.
// Otherwise the error names the first rule that is broken, with its numbers.
Status check_plan(const View& view, const StepPlan& plan);

}  // namespace kvasir
