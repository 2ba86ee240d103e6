// The reasons that the policy `auto` gives for its plans.
#pragma once

#include "contract/reason.h"
#include "contract/view.h"
#include "plan/plan_builder.h"
#include "sched/mechanisms/batch_gap.h"
#include "sched/mechanisms/device_prices.h"
#include "sched/policies/auto_requests.h"

namespace kvasir {

// Why `victim` gives up its memory, of which `other` needs one block for its next token.
Reason why_preempted(const AutoRequest& victim, SeqId other);
// Why it runs from now on. paid: on credit.
Reason why_admitted(const AutoRequest& r, bool paid);
// Why it waits on. refusal: not kNone and not kTime. spare: blocks that an admission leaves.
Reason why_refused(Refusal refusal, const AutoRequest& r, uint32_t spare, const View& view,
                   const PlanBuilder& builder);
// The same where the batch would exceed a gap.
Reason why_no_time(SeqId seq, const GapBound& exceeded);

}  // namespace kvasir
