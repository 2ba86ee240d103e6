// One step of CacheOpt (policies/cacheopt.cc).
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "contract/view.h"
#include "plan/plan_builder.h"
#include "sched/mechanisms/arrival_load.h"
#include "sched/mechanisms/output_estimate.h"
#include "sched/mechanisms/swap_or_recompute.h"

namespace kvasir {

enum class Embedding : uint8_t {
  kOff,
  kAlways,     // before free memory is considered, as in the paper
  kWhenShort,  // if free memory is not enough for the demand
};

// docs/policies/cacheopt.md lists them under their names on the command line.
struct CacheOptOptions {
  PaddingOptions padding;        // Section 3.2
  ConfidenceOptions confidence;  // Equation 4
  // Section 3.3.2; false: first come, first served, each with its whole demand.
  bool select_by_slo = true;
  // Makes room for critical waiting requests, as in the paper; false: only for running ones.
  bool preempt_for_waiting = false;
  // A request that has missed its bound comes before all others, as in the paper; false: after them. None is
  // preempted for it.
  bool late_first = false;
  Embedding embed = Embedding::kWhenShort;  // Section 3.3.1
  uint32_t buffer_tokens = 8;               // b: of an embedded request
  // Section 3.3.3: m, the number of last steps in which a request gets more room (0: none); and the shared
  // reserve: tokens, plus a share of the device's cells.
  uint32_t proactive_steps = 2;
  uint32_t reserve_tokens = 64;
  double reserve_share = 0;
  bool victim_by_slo = true;                                   // Section 3.4; without it the latest arrival
  PreemptionStrategy strategy = PreemptionStrategy::kCheaper;  // Section 3.5
};

// Plans the step. `longest_step`: the longest time of a step; a request with less time left is critical.
void plan_cacheopt_step(const View& view, const CacheOptOptions& options, const OutputEstimate& estimate,
                        Nanos longest_step, PlanBuilder& builder);

// The running sequences, the first to be preempted at the front (Section 3.4).
std::vector<const SeqView*> cacheopt_victims(const View& view, const CacheOptOptions& options,
                                             const OutputEstimate& estimate);

}  // namespace kvasir
