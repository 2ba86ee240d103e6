// Brings preempted sequences back that kept their cells, on the host or still on the device.
//
// Source: vLLM 0.5, Scheduler._schedule_swapped: first come, first served, while there are blocks for them,
// and before any new prompt is admitted.
#pragma once

#include <functional>
#include <vector>

#include "contract/plan_builder.h"
#include "contract/view.h"

namespace kvasir {

// A waiting sequence holds cells: it was preempted and not dropped.
bool anyone_swapped_out(const View& view);

// Admits them in order, each with its next rows, while more than `watermark` blocks are left (0 where nothing
// else runs). Returns how many were admitted.
uint32_t swap_in(const View& view, uint32_t watermark, PlanBuilder& builder);
// The same of these, in this order; `rows`: what their rows leave behind, where there is room for it.
uint32_t swap_in(const View& view, const std::vector<const SeqView*>& waiting, uint32_t watermark,
                 PlanBuilder& builder, const std::function<RowOptions(const SeqView&)>& rows = {});

}  // namespace kvasir
