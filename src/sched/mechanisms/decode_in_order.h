// Plans the next token of every decoding sequence for which there is room, and preempts none.
//
// Source: DeepSpeed-FastGen, which leaves a request without a free KV block out of the step, and Orca, where
// there is always a block. Used by every policy that does not preempt to decode.
#pragma once

#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Plans a decode for each decoding sequence in `running`, in order. A sequence that lacks a block, or waits
// for a transfer, is left out of this step: blocks that become free later go to the first of these.
void decode_in_order(const std::vector<const SeqView*>& running, PlanBuilder& builder);

}  // namespace kvasir
