// Gives every decoding sequence its next token where there is room for it, and preempts none.
//
// Source: DeepSpeed-FastGen, which leaves a request for which there is no KV block out of the step; and Orca,
// where there always is one. Used by every policy that does not preempt to decode.
#pragma once

#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Plans a decode for each decoding sequence in `running`, in order. One for which there is no block, or that
// waits for a transfer, sits this step out: blocks that come free later go to the first of them.
void decode_in_order(const std::vector<const SeqView*>& running, PlanBuilder& builder);

}  // namespace kvasir
