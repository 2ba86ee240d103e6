// How many requests decode together, and which share of their histories is not kept on the device.
//
// Source: eLLM, Sections 4.1 and 4.2.2, Equations 1 and 5:
//
//   max over (b, r) of b / T(b, r)   subject to   T(b, r) + WT_max <= SLO
//                                                 sum_{i<=b} m s_i (1 - r) + M_o <= M       (device memory)
//                                                 0 <= r <= 1,  1 <= b <= B
//
// Read so: WT_max is the time since the last token of those that run; B, running and waiting requests
// together; M_o = k r m sum s_i, so that raising r helps only while k < 1 (the published bound, 8 h b s r (l1
// + l2), has k = 2 (l1 + l2) / L). What is not on the device is computed again (`again_share` of it), or
// comes from a slower tier, whose room and link are bounds, too: the paper has the link in Equation 6 only.
//
// For a fixed b, T grows with r. So the best r is the least that fits memory, which has a closed form, and
// what is left is a scan over b in order of arrival. A device with room for all gets r = 0.
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
  std::vector<double> held_back{};  // of each, what stays on the device whatever r is; empty: nothing
  BatchCost cost;
  double most_seconds = kUnbounded;  // SLO - WT_max
  double device_tokens = 0;          // M / m: whose K and V the device has room for
  double overhead = 0;               // k: M_o for each token that is not kept, in tokens
  double again_share = 1;            // of what is not kept: computed again; the rest is staged over the link
  double passing_tokens = kUnbounded;  // of what is not kept: what scratch memory can pass
  double slower_tokens = kUnbounded;   // of what is staged: what the slower tier has room for
  double again_tokens = kUnbounded;    // of what is computed again: rows for which there is memory
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

// What a step of the first `requests` takes with so much of their histories not on the device: the
// computation and the link's time go on beside each other. What is computed again are the oldest tokens of
// each request, in all layers, so a request adds the square of their number. (Computed again in that share of
// the layers, all that left would add more: again_share times its square.)
double ratio_seconds(const RatioProblem& problem, uint32_t requests, double ratio);

// The least r with which the first `requests` fit every bound but that on time; negative: none does. Right
// but for rounding: whoever needs whole tokens rounds up what leaves the device.
double least_ratio(const RatioProblem& problem, uint32_t requests);

// The best (b, r); among equals the greater b. O(B).
RatioChoice choose_ratio(const RatioProblem& problem);

// The same by sequential least squares programming (NLopt), as the paper has it: b is relaxed to a real
// number, between the sums of two neighbours, and rounded down in the end. For comparison: what it returns
// fits the bounds, and may be worse. The sums have a kink at each request, where a search may stay; it is the
// best of five, which begin at b / B = 0, 1/3, 2/3 and 1 with r = 0, and in the middle.
RatioChoice choose_ratio_slsqp(const RatioProblem& problem);

}  // namespace kvasir
