// Continues the running sequences: a token for each that decodes, and the rest of each partly computed
// prompt.
#pragma once

#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"
#include "sched/mechanisms/decode_or_preempt.h"

namespace kvasir {

// Whether any running sequence still prefills, and waits for no transfer.
bool any_prefilling(const View& view);

// Plans decodes, preempting as decode_or_preempt() does, and then prefills, in order of arrival. Returns the
// number of preemptions.
uint32_t continue_running(const View& view, PlanBuilder& builder, PreemptBy by);
// The same in the order of `running`; the last is preempted first.
uint32_t continue_running(const std::vector<const SeqView*>& running, PlanBuilder& builder, PreemptBy by,
                          const VictimRule& rule = {});

}  // namespace kvasir
