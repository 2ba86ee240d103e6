// Which bounds on the gap between two tokens are worth keeping.
//
// A tight gap bounds the batch of all requests: the least gap g that is kept decides how many tokens a second
// the device yields,
//
//   R(g) = n / T(n),   T(n) = s + n (beta + gamma c + alpha p / o) + h max(0, n (1 + p / o) - K),
//
// with the largest n for which x T(n) <= g, and which memory and slots allow: each token carries its share of
// its request's prompt,
//
// so a few requests with a tight bound can cost the others more than they gain. Of the requests that arrive,
// those with a gap of at least g can be served in time up to the share
//
//   value(g) = share of requests with gaps >= g, times min(1, R(g) / the tokens a second that these need)
//
// The gap with the greatest value is kept, and requests with a lesser one are given up, as if they were late
// (they are served behind the others). Ours; a request counts by its weight, and without weights as in
// goodput (Zhong et al., DistServe, OSDI 2024).
//
//   symbol     here                                                       unit
//   p, o       GapClass: mean prompt and output of those served           tokens
//   c          p + o / 2: the mean context                                tokens
//   x          StepMargins::priced()                                      -
//   h, K       CostModel::above_knee_s, knee_rows                         s, rows
#pragma once

#include "contract/cost_model.h"
#include "sched/mechanisms/arriving_work.h"
#include "sched/mechanisms/step_margins.h"

namespace kvasir {

struct DeviceLimits {
  double tokens = 0;        // for which there is memory
  double max_num_seqs = 0;  // at once
  // For those without a bound: as BatchGapOptions::otherwise_s.
  double otherwise_s = 0;
};

// The least gap that is worth keeping, in seconds: a class's GapClass::gap_s, of which all in the class are
// kept; 0: all are; infinite: none can be kept. `kept`: the answer for the last plan, which stays unless
// another is worth a twentieth more.
double worthwhile_gap(const ArrivingWork& work, const CostModel& costs, const StepMargins& margins,
                      const DeviceLimits& limits, double kept);

}  // namespace kvasir
