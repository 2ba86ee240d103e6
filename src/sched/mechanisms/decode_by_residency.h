// Decides which requests decode while some of their layers are off the device, and which layers come back.
//
// Source: LayerKV, Section 3.1.2 and Section 4: in the decode phase offloaded layers come from the host layer
// by layer. The paper does not say which requests decode while others' layers are away. A step that stages
// everything takes as long as the link needs for it (16k tokens of a 7B model: 8.6 GB, a third of a second).
// So here the link's time is a budget: transfers during a step should hide behind its computation.
//
//   - Requests with all layers on the device decode in every step.
//   - Free cells bring layers back for good, in order of arrival.
//   - The rest of the budget stages layers for requests with little time left within their bounds
//     (Equation 1), the most urgent first, and then for the first request of which no layer comes back. That
//     request may also take a fiftieth of the time that it has waited, so that it makes progress even if a
//     step is too short.
//
// No other request is served while its layers are away: a token for a request whose layers come back much
// later takes time from requests that are about to end.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"
#include "sched/mechanisms/rest_of_output.h"

namespace kvasir {

// Cells of its history that are neither on the device nor on their way to it.
uint32_t cells_away(const View& view, const SeqView& seq);
// Seconds that the link takes to bring them.
double link_seconds(const View& view, const SeqView& seq);

// Plans decodes of the sequences of `running` (by arrival) that are on the device. If a cell for one is
// missing, and none will become free, preempts the last of `running` until there is one. `offloads`: this
// plan offloads layers, which may free cells for all, so it preempts none. Returns the number of preemptions.
uint32_t decode_resident(const View& view, const std::vector<const SeqView*>& running, bool offloads,
                         PlanBuilder& builder);

struct AwayOptions {
  int64_t spare_cells = 0;  // cells for layers that come back
  // The budget: seconds of the link for each second of the step's estimated computation.
  double link_share = 1;
  // The layers of a request are staged if at most this share of its bounds is left.
  double urgent_share = 0;
  // So many seconds of the link may those take in all, also where the step has to wait for them.
  double urgent_s = 0;
  double step_s = 0;       // Equation 1's current TPOT, for one that is served
  double link_used_s = 0;  // what other rows of this plan already take of the link
  // Equation 5's stages: a request that comes back has room for the blocks that it begins within them.
  uint32_t stages = 1;
  const RestOfOutput* survival = nullptr;  // as for allowed_prefill()
  // All decode, however long the step waits for the link.
  bool all = false;
};

// Plans decodes of other sequences of `running`. If the step is empty so far, at least one decodes.
void decode_away(const View& view, const std::vector<const SeqView*>& running, const AwayOptions& options,
                 PlanBuilder& builder);

}  // namespace kvasir
