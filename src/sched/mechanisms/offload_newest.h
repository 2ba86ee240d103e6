// Makes room on the device by offloading layers of the newest requests.
//
// Source: LayerKV, Section 3.1.1: when the available blocks fall below a threshold, the retained layers of
// the most recently processed requests are offloaded: first half of them, then all if that is not enough. The
// paper says "x/2, then x" with Equation 4's x, which is nearly always 0; here x is the number of layers that
// a request retains.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Copies full blocks to the slower tier and releases them on the device: half of the retained layer groups of
// the last of `running`, the other half, then those of the sequence before, until `cells` will become free or
// nothing is left. It spares the first of `running` and sequences with rows in this plan. Returns the number
// of cells that become free when the copies are ready.
int64_t offload_newest(const View& view, const std::vector<const SeqView*>& running, int64_t cells,
                       PlanBuilder& builder);

}  // namespace kvasir
