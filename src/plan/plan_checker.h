// Checks a plan against the view that it was made from. Always on in tests and debug builds; the engine can
// also run it in a release build.
#pragma once

#include "base/status.h"
#include "contract/step_plan.h"
#include "contract/view.h"

namespace kvasir {

// Ok if the plan can be committed and makes progress:
//  - it names sequences of the view, each in a state that allows the entry;
//  - every row's history is covered: a sequence's rows begin where its ready or adopted tokens end, rows that
//    recompute its dropped cells come before them, and this plan stages or brings back cells that are not on
//    the device;
//  - cells that rows do not keep on the device, and only those, go to the slower tier as they are written;
//    no row writes into a block that is being copied;
//  - on each tier, new cells, copies, adopted idle blocks and outstanding promises fit in the cells that are
//    free or given up; staged blocks fit in the ring;
//  - a cell that is given up has another copy, or the sequence gives up all its cells;
//  - no more sequences run than the limits allow (the token budget is a policy's aim, not a rule: a prompt
//    larger than the budget may run alone);
//  - if there is work and no step and no transfer is in flight, the plan runs, preempts, copies, drops or
//    fails something, or makes a shared reserve smaller;
//  - promises come from existing cells; promises beyond a sequence's own go to running sequences; a sequence
//    with a loan that is due does not keep running.
// Otherwise the error names the first broken rule, with its numbers.
Status check_plan(const View& view, const StepPlan& plan);

// Whether cells lent to peers may come back and let the work continue. Not if requests wait while nothing
// runs and no peer lends: several such instances would wait for each other.
bool comes_back(const View& view);

// Whether nothing runs here and all waiting sequences leave their memory to an older request of a peer.
bool yields_to_peer(const View& view);

// Whether progress is possible without the plan: through a step or a transfer in flight, or a peer that lends
// missing cells or returns lent ones. `borrows`: the plan asks peers for memory.
bool help_may_come(const View& view, bool borrows);

// There is work, nothing is in flight, and the plan does nothing: this state would last for ever.
bool stands_still(const View& view, const StepPlan& plan);

}  // namespace kvasir
