// Brings back preempted sequences that kept their cells, on the slower tier or still on the device.
//
// Source: vLLM 0.5, Scheduler._schedule_swapped: first come, first served, while there are blocks for them,
// and before any new prompt is admitted.
#pragma once

#include <functional>
#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Whether any waiting sequence holds cells: it was preempted and kept them.
bool any_swapped_out(const View& view);

// Admits them in order, each with its next rows, while more than `watermark` blocks are left (0 where nothing
// else runs). Returns how many were admitted.
uint32_t swap_in(const View& view, uint32_t watermark, PlanBuilder& builder);
// The same of the sequences of `waiting`, in that order. `rows`: what their rows leave behind, where there is
// room for it.
uint32_t swap_in(const View& view, const std::vector<const SeqView*>& waiting, uint32_t watermark,
                 PlanBuilder& builder, const std::function<RowOptions(const SeqView&)>& rows = {});

}  // namespace kvasir
