// Makes room on the device by offloading layers of the newest requests.
//
// Source: LayerKV, Section 3.1.1: when the available blocks fall below a threshold, the retained layers of
// the most recently processed requests are offloaded, at first half of them, and all where that is not
// enough. The paper says "x/2, then x" with Equation 4's x, which is 0 nearly always; read here of the layers
// that a request retains.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/plan_builder.h"
#include "contract/view.h"

namespace kvasir {

// Copies full blocks to the slower tier and releases them on the device: half of the retained layer groups of
// the last of `running`, the other half, then those of the one before, until `cells` come free or nothing is
// left. Never of the first. Returns how many come; they are free when the copies are ready. Those that have
// rows in this plan are left alone.
int64_t offload_newest(const View& view, const std::vector<const SeqView*>& running, int64_t cells,
                       PlanBuilder& builder);

}  // namespace kvasir
