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
//   T_future   N_future * the current TPOT, `DecodePace::tpot_s`: as it is measured, with
//              all waits (mechanisms/measured_tpot.h)                                         s
//
// Our reading: TPOT is the mean over the tokens after the first, so N counts those. A request for which
// Equation 1 is negative allows nothing until it has caught up or ended; `missed` says that it is negative by
// the predicted length, too, so that it will hardly catch up. If no decoding request has a bound, there is no
// limit. While a step is in flight N_past counts its token, and T_past does not count its time.
//
// Beyond the paper, a bound on the time between any two tokens allows the rest of the current gap, less the
// step that ends it. A bound shorter than a step of those that decode is missed.
#pragma once

#include <limits>

#include "contract/view.h"
#include "sched/mechanisms/rest_of_output.h"

namespace kvasir {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

struct PrefillAllowance {
  double seconds = kNoLimit;  // kNoLimit without a bound
  double share = 1;           // the remaining share of the time that its bounds give
  bool missed = false;        // a bound is missed: seconds is 0
};

// How fast those that decode get on.
struct DecodePace {
  // Without waits both are the same.
  DecodePace(double seconds) : step_s(seconds), tpot_s(seconds) {}  // NOLINT(google-explicit-constructor)
  DecodePace(double step, double tpot) : step_s(step), tpot_s(tpot) {}
  double step_s;  // a step
  double tpot_s;  // the current TPOT
};

// The time that one decoding request allows at `now`. If its first token is still in a step in flight, its
// time begins now. survival: conditions lengths on it; null: the paper's N_future.
PrefillAllowance allowed_prefill(const SeqView& seq, const std::vector<LengthClass>& classes, Nanos now,
                                 const DecodePace& pace, const RestOfOutput* survival = nullptr);

// A bound on its tokens is shorter than a step with none but this request: nothing lets it keep that bound.
bool beyond_reach(const SeqView& seq, const CostModel& costs);

// The remaining output tokens, by the class's lower bound or by the predicted length itself.
uint32_t least_future_tokens(const SeqView& seq, const std::vector<LengthClass>& classes);
uint32_t predicted_future_tokens(const SeqView& seq);

}  // namespace kvasir
