// Chooses how many requests decode together, and which share of their histories is not kept on the device.
//
// Source: eLLM, Sections 4.1 and 4.2.2, Equations 1 and 5:
//
//   max over (b, r) of b / T(b, r)   subject to   T(b, r) + WT_max <= SLO
//                                                 sum_{i<=b} m s_i (1 - r) + M_o <= M       (device memory)
//                                                 0 <= r <= 1,  1 <= b <= B
//
// T also has what prompts add to a step (prompt_share.h), for each request. Our deviation: WT_max is the time
// since the last token of those that run, where the paper takes it from the waiting queue (batch_bound.h).
// Our reading: B, running and waiting requests together; M_o = k r m sum s_i, so that raising r helps only
// while k < 1 (the published bound, 8 h b s r (l1 + l2), has k = 2 (l1 + l2) / L). What is not on the device
// is recomputed (`again_share` of it), or comes from a slower tier, whose room and link are bounds, too: the
// paper has the link in Equation 6 only.
//
// For a fixed b, T grows with r. So the best r is the least that fits memory, which has a closed form. What
// remains is a scan over b, in order of arrival. A device with room for all gets r = 0.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "contract/cost_model.h"
#include "sched/mechanisms/batch_cost.h"

namespace kvasir {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// All in tokens, unless it says otherwise.
struct RatioProblem {
  std::vector<double> lengths;      // s_i, in the order in which they are served
  std::vector<double> held_back{};  // of each, what stays on the device for any r; empty: nothing
  std::vector<double> prompts_s{};  // of each, seconds that prompts add to a step; empty: none
  BatchCost cost;
  double most_seconds = kUnbounded;    // SLO - WT_max
  double device_tokens = 0;            // M / m: whose K and V the device has room for
  double overhead = 0;                 // k: M_o for each token that is not kept, in tokens
  double again_share = 1;              // of what is not kept: recomputed; the rest is staged over the link
  double passing_tokens = kUnbounded;  // of what is not kept: what scratch memory can pass
  double slower_tokens = kUnbounded;   // of what is staged: what the slower tier has room for
  double again_tokens = kUnbounded;    // of what is recomputed: rows for which there is memory
  double staged_token_s = 0;           // seconds of the link for a staged token
  double staging_s = 0;                // and for any, once in a step (latency)
  double greatest_ratio = 1;
};

struct RatioChoice {
  uint32_t requests = 0;  // b; 0: not even one fits its bounds
  double ratio = 0;       // r
  double seconds = 0;     // T
  friend bool operator==(const RatioChoice&, const RatioChoice&) = default;
};

// How long a step of the first `requests` takes with that share of their histories not on the device:
// computation and transfers overlap. The oldest tokens of each request are recomputed, in all layers, so
// a request adds the square of their number. (Computing all that is not there again in a share of the layers
// would add more: again_share times its square.)
double ratio_seconds(const RatioProblem& problem, uint32_t requests, double ratio);

// The least r with which the first `requests` meet every bound except that on time; negative: none does. Not
// rounded: a caller that needs whole tokens rounds up the part that leaves the device.
double least_ratio(const RatioProblem& problem, uint32_t requests);

// The best (b, r); among equals the greater b. O(B).
RatioChoice choose_ratio(const RatioProblem& problem);

// The same by sequential least squares programming (NLopt), as in the paper: b is relaxed to a real number,
// with interpolated sums, and finally rounded down. For comparison: the result meets the bounds, and may be
// worse. The sums have a kink at each request, where a search may get stuck. So it takes the best of five
// searches, which start at b / B = 0, 1/3, 2/3 and 1 with r = 0, and in the middle.
RatioChoice choose_ratio_slsqp(const RatioProblem& problem);

}  // namespace kvasir
