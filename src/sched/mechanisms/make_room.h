// Preempts running sequences for a waiting one with precedence.
//
// Source: vLLM's priority scheduling (from 0.6 on): if the first of the queue cannot be admitted, running
// sequences of lower priority are preempted, the lowest first, until it can be admitted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Preempts sequences by dropping their cells, from the end of `running` down to index `first`, until there is
// room for `head` and `spare_blocks` and one more sequence may run. Returns the number of preemptions: 0 if
// there is room already, and also if all of them together would not make enough. Cells that steps in flight
// still use, and cells given up earlier, count as room, since they will become free. REQUIRES: `head` waits
// and this plan has not named it; the sequences from `first` on have no rows in this plan.
uint32_t make_room(const View& view, const SeqView& head, const std::vector<const SeqView*>& running,
                   size_t first, uint32_t spare_blocks, PlanBuilder& builder);

}  // namespace kvasir
