// Which requests decode when not all of their layers are on the device, and which layers come back.
//
// Source: LayerKV, Section 3.1.2 and Section 4: in the decode phase offloaded layers come from the host layer
// by layer. The paper does not say which requests decode while others' layers are away. A step that stages
// everything takes as long as the link needs for it (16k tokens of a 7B model: 8.6 GB, a third of a second),
// so here the link's time is a budget: what comes during a step is to hide behind what the step computes.
//
//   - Those whose layers are all on the device decode in every step.
//   - Free cells bring layers back for good, in order of arrival.
//   - What is left of the budget stages layers for requests of whose bounds little time is left (Equation 1),
//     the most urgent first, and then for the first request of which no layer comes back. That one may also
//     take a fiftieth of the time that it has waited, so that it goes on even if a step is too short for it.
//
// No other request is served while its layers are away: a token for one that is far from having them back
// takes time from those that are about to end.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Cells of its history that are not on the device, nor on their way to it.
uint32_t cells_away(const View& view, const SeqView& seq);
// Seconds that the link takes to bring them.
double link_seconds(const View& view, const SeqView& seq);

// Decodes those of `running` (by arrival) that are on the device. Where there is no cell for one, and none
// coming, the last of `running` is preempted, until there is. `offloads`: this plan offloads layers, which
// may leave cells for all, so that none is preempted. Returns how many were preempted.
uint32_t decode_resident(const View& view, const std::vector<const SeqView*>& running, bool offloads,
                         PlanBuilder& builder);

struct AwayOptions {
  int64_t spare_cells = 0;  // that may be filled with layers that come back
  // Of the link's time: seconds for each second that the step is believed to compute.
  double link_share = 1;
  // A request with no more than this share of its bounds left has its layers staged.
  double urgent_share = 0;
  double step_s = 0;       // Equation 1's current TPOT
  double link_used_s = 0;  // what other rows of this plan already take of the link
  // Equation 5's: a request that comes back finds room for the blocks that it begins within them.
  uint32_t stages = 1;
};

// Decodes others of `running`. If the step is empty so far, one goes in any case.
void decode_away(const View& view, const std::vector<const SeqView*>& running, const AwayOptions& options,
                 PlanBuilder& builder);

}  // namespace kvasir
