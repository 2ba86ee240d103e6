// Judges a plan against the view that it was made from. Always on in tests and debug builds; the engine can
// run it in a release too.
#pragma once

#include "base/status.h"
#include "contract/step_plan.h"
#include "contract/view.h"

namespace kvasir {

// Ok if the plan can be committed and moves the work forward:
//  - it names sequences of the view, each in a state that allows what is asked;
//  - every row's history is covered: a sequence's rows begin where its ready or adopted tokens end, what they
//    compute again comes before them, and cells that are not on the device are staged or brought back by this
//    plan;
//  - what rows do not keep on the device goes to the host as they write it, and nothing else does so; no row
//    writes into a block that is being copied;
//  - new cells, copies, adopted idle blocks and outstanding promises fit, on each tier, in what is free or
//    given up; what is staged fits in the ring;
//  - a cell that is given up has another copy, or the sequence gives up all that it has;
//  - no more sequences run than the limits allow (the budget of tokens is a policy's aim, not
//    a rule: a prompt larger than it may go alone);
//  - if there is work and nothing is in flight, no step and no transfer, the plan runs, preempts, copies,
//    drops or fails something, or makes a shared reserve smaller;
//  - promises come from what there is, those beyond a sequence's own go to who runs; and whose loan is due
//  does not run on.
// Otherwise the error names the first rule that is broken, with its numbers.
Status check_plan(const View& view, const StepPlan& plan);

// Whether what was lent to peers may come back and let the work go on: not where requests wait that nothing
// runs beside, and that nobody lends to. Each of several such instances would wait for the others.
bool comes_back(const View& view);

// Whether all that wait leave the memory that they need to an older request of a peer, and nothing runs here.
bool yields_to_peer(const View& view);

// There is work, nothing is in flight, and the plan does nothing: it would be so for ever.
bool stands_still(const View& view, const StepPlan& plan);

}  // namespace kvasir
