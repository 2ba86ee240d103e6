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

// Where a request goes whose bound has passed.
enum class Late : uint8_t {
  kLast,      // behind all that can still keep theirs
  kFirst,     // by time left alone; it is not critical, and none is preempted for it
  kCritical,  // likewise, and it is critical, as RT - T < epsilon says: the paper's
};

// For which critical requests others make way.
enum class PreemptFor : uint8_t {
  kRunning,
  kFirstTokens,  // also for waiting ones, of which only those without a first token are critical: the paper's
                 // N_w has RT_tft alone
  kAll,          // also for waiting ones, and those that were preempted
};

// docs/policies/cacheopt.md lists them under their names on the command line.
struct CacheOptOptions {
  PaddingOptions padding;        // Section 3.2
  ConfidenceOptions confidence;  // Equation 4
  // Section 3.3.2; false: first come, first served, each with its whole demand.
  bool select_by_slo = true;
  PreemptFor preempt_for = PreemptFor::kFirstTokens;
  Late late = Late::kCritical;
  Nanos epsilon = 0;  // of RT - T_I^max < epsilon
  // Section 3.3.2, the third case: A_i = A' w_i / sum w, as printed; false: the excess is shared instead
  // (mechanisms/share_excess.h).
  bool share_as_printed = false;
  // A request that has used up its room and finds none preempts the first in the order, which may be itself,
  // as in the paper; false: it sits out, and keeps its memory.
  bool preempt_when_short = false;
  // Prompts are cut to the time that the tightest gap of the decoding requests leaves; false: to the token
  // budget only, as in the paper.
  bool cut_to_gap = true;
  Embedding embed = Embedding::kWhenShort;  // Section 3.3.1
  uint32_t buffer_tokens = 8;               // b: of an embedded request
  // Section 3.3.3: m, the number of last steps in which a request gets more room (0: none); and the shared
  // reserve: tokens, plus a share of the device's cells.
  uint32_t proactive_steps = 2;
  bool proactive_by_end = false;  // steps until it ends, as in the paper; false: until its room is used up
  uint32_t reserve_tokens = 64;
  double reserve_share = 0;
  bool victim_by_slo = true;                                   // Section 3.4; without it the latest arrival
  PreemptionStrategy strategy = PreemptionStrategy::kCheaper;  // Section 3.5
  bool longest_ever = false;  // T_I^max of all steps, as in the paper; false: of the last few hundred
};

// Plans the step. `longest_step`: the longest time of a step; a request with less time left is critical.
void plan_cacheopt_step(const View& view, const CacheOptOptions& options, const OutputEstimate& estimate,
                        Nanos longest_step, PlanBuilder& builder);

// The running sequences, the first to be preempted at the front (Section 3.4).
std::vector<const SeqView*> cacheopt_victims(const View& view, const CacheOptOptions& options,
                                             const OutputEstimate& estimate);

}  // namespace kvasir
