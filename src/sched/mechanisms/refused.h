// Says why a request stays out of a step: the first of the queue, or one that runs.
#pragma once

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Blocks that it needs for so many tokens, beyond those that it has or finds in the cache.
uint32_t blocks_missing(const View& view, const SeqView& seq, uint32_t tokens);

// Gives the reason why builder.admit(seq, options) was refused: no more may run, or there are too few blocks.
// None where it waits for something else, as for a transfer of its own. Returns false, as admit() did.
bool refused(const View& view, const SeqView& seq, const AdmitOptions& options, PlanBuilder& builder);

// Says that it has no row because no block can be had; nothing where something else kept it out, such as the
// slower tier. REQUIRES: it can run, and its decode was refused.
void say_no_free_block(const SeqView& seq, PlanBuilder& builder);

}  // namespace kvasir
