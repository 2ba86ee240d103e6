// Preempts running sequences for a waiting one that goes before them.
//
// Source: vLLM's priority scheduling (from 0.6 on): where the first of the queue cannot be admitted, running
// sequences of lower priority are preempted, the lowest first, until it can be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Preempts, by dropping, from the end of `running` on, and never below index `first`, until there is room for
// `head` beside `spare_blocks` and one more may run. Returns how many were preempted: 0 where there is room
// already, and also where all of them together would not make enough. Cells that steps in flight still use,
// and those that were given up before, count as room, since they will come free. REQUIRES: `head` waits and
// this plan has not named it; those from `first` on have no rows in this plan.
uint32_t make_room(const View& view, const SeqView& head, const std::vector<const SeqView*>& running,
                   size_t first, uint32_t spare_blocks, PlanBuilder& builder);

}  // namespace kvasir
