// How long prefills may delay decoding requests.
//
// Source: LayerKV, Section 3.1, Equation 1,
//
//   T_allow_prefill^i = T_tpot^i * (N_past^i + N_future^i) - (T_past^i + T_future^i),
//
// and its minimum over the requests that decode, the right side of Equation 2.
//
//   symbol     here                                                                           unit
//   T_tpot     Slo::tpot_ms                                                                   ms
//   N_past     output tokens after the first                                                  tokens
//   N_future   lower bound of the predicted class, or its 5 % quantile where requests of
//              it have finished, less the output so far; at least 1                           tokens
//              (with `survival` the 5 % quantile of what is left of those that live so long)
//   T_past     since the first token, all waiting included                                    s
//   T_future   N_future * `step_s`, the time of the current decode steps                      s
//
// Our reading: TPOT is the mean over the tokens after the first, so N counts those. A request that has missed
// its bound even by its predicted length would block every prefill until it ends: it is left out. A request
// that has missed it only by the lower bound allows nothing until it has caught up. If no decoding request
// has a bound, there is no limit. While a step is in flight N_past counts its token, and T_past does not
// count its time.
//
// Beyond the paper, a bound on the time between any two tokens allows the rest of the current gap, less the
// step that ends it. A bound shorter than a step cannot be met, and counts as missed.
#pragma once

#include <limits>

#include "contract/view.h"
#include "sched/mechanisms/rest_of_output.h"

namespace kvasir {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

struct PrefillAllowance {
  double seconds = kNoLimit;  // kNoLimit without a bound
  double share = 1;           // the remaining share of the time that its bounds give
  bool missed = false;        // a bound is missed, or cannot be met
};

// The time that one decoding request allows at `now`. If its first token is still in a step in flight, its
// time begins now. survival: conditions lengths on it; null: the paper's N_future.
PrefillAllowance allowed_prefill(const SeqView& seq, const std::vector<LengthClass>& classes, Nanos now,
                                 double step_s, const RestOfOutput* survival = nullptr);

// The remaining output tokens, by the class's lower bound or by the predicted length itself.
uint32_t least_future_tokens(const SeqView& seq, const std::vector<LengthClass>& classes);
uint32_t predicted_future_tokens(const SeqView& seq);

}  // namespace kvasir
