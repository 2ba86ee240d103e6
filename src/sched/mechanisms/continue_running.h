// The step of the sequences that run already: a token for each that decodes, and the rest of a prompt that
// was cut short.
#pragma once

#include <vector>

#include "contract/plan_builder.h"
#include "contract/view.h"
#include "sched/mechanisms/decode_or_preempt.h"

namespace kvasir {

// A running sequence has not come to the end of what it knows, and waits for no transfer.
bool anyone_prefilling(const View& view);

// Decodes, preempting as decode_or_preempt() does, and then prefills in order of arrival. Returns how many
// were preempted.
uint32_t continue_running(const View& view, PlanBuilder& builder, PreemptBy by);
// Likewise in this order, the last of which is preempted first.
uint32_t continue_running(const std::vector<const SeqView*>& running, PlanBuilder& builder, PreemptBy by);

}  // namespace kvasir
