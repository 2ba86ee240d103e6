// The share of requests that can meet all of their bounds, whatever the schedule: a bound on what any policy
// attains. It knows the lengths, the future and the device.
//
// A request is a job for most_in_time(). Its cost in seconds of the device is
//
//   kappa = (lambda + gamma) V + (rho + beta) (O - 1) + alpha P
//
// with coefficients by which no step of a grid is slower than it is: s, beta and gamma are the believed ones
// times the least ratio of true and believed time of steps that decode, and alpha is the least time that a
// row of a prompt adds to any of them. Each step takes s whatever is in it: either memory pays, lambda = s /
// (M + W T / b) (device memory, and what the link can stage behind a step at full memory T), or slots pay,
// rho = s / B, or the rows that decode pay by what they add: a step that leaves a gap g adds at most g - s,
// so what a row adds counts g / (g - s) times. Each of these is a relaxation, and so is the work of the
// prompts alone, which is due with the first token: the least of the four counts. A request that would miss a
// bound if it were alone meets it in no schedule.
//
//   symbol      here                                               unit
//   P, O        prompt and output of the request                   tokens
//   V           (O - 1) P + O (O - 1) / 2                          tokens times steps
//   window      from its arrival until arrival + e2el, or arrival + ttft + (O - 1) the allowed gap
//
// What it does not see: that rows are computed in whole steps, that memory is in blocks, and the noise.
#pragma once

#include <vector>

#include "apps/simulate/simulation.h"

namespace kvasir {

struct BoundedDevice {
  CostModel costs;          // step_s, decode_row_s, context_s and prefill_row_s count
  double tokens = 0;        // M
  double staged_per_s = 0;  // W / b: tokens a second that the link brings; 0: no slower tier
  double max_num_seqs = 0;  // B
  double instances = 1;     // of such devices
};

// The coefficients above, for steps with up to `tokens` tokens of context.
CostModel least_costs(const StepTimes& times, const CostModel& believed, double tokens);

// A share in [0, 1]; 1 without requests.
double attainable_share(const std::vector<SimulatedRequest>& requests, const BoundedDevice& device);

}  // namespace kvasir
