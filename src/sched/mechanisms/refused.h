// Says why the first of the queue stays out of a step. Used by every policy that admits in an order.
#pragma once

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Blocks that it needs for so many tokens, beyond those that it has or finds in the cache.
uint32_t blocks_missing(const View& view, const SeqView& seq, uint32_t tokens);

// Gives the reason why builder.admit(seq, options) was refused: no more may run, or there are too few blocks.
// None where it waits for something else, as for a transfer of its own. Returns false, as admit() did.
bool refused(const View& view, const SeqView& seq, const AdmitOptions& options, PlanBuilder& builder);

}  // namespace kvasir
