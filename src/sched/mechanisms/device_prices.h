// What a request costs, in seconds of the device.
//
//   kappa = (lambda + gamma) V + (rho + beta) r + alpha R + pi P
//
// with prices for what is scarce. Each step takes s whatever is in it, and whatever binds the batch pays for
// s: if it is memory, each token kept for a step pays lambda = u_M s / M; if it is the number of running
// sequences, each of them pays rho = u_B s / B. u_M and u_B are the shares of recent steps in which the first
// request that was refused was refused for that reason. With u_M + u_B = 1 the prices add up to s: they are
// the dual of the linear program that bounds goodput (`simulate --bound`). Without a shortage a request pays
// only for what it adds to steps.
//
//   symbol             here                                              unit
//   s, alpha, pi,      CostModel: weights_s(), prefill_row_s, pair_s,    s
//   beta, gamma        decode_row_s, context_s
//   V                  RequestWork::token_steps                          tokens held, times steps
//   r                  RequestWork::steps                                steps: the output that is left
//   R, P               RequestWork::prefill (of StepWork)                rows, pairs
//   M                  `tokens`: for which the device has memory         tokens
//   B                  PlanLimits::max_num_seqs                          sequences
//
// Source: size as memory x time, Jaillet et al. (arXiv 2502.07115) and Wang, Ye, Zhou (arXiv 2508.06133);
// the prices are ours.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "contract/cost_model.h"
#include "sched/mechanisms/rest_of_output.h"

namespace kvasir {

// What is left to do for a request.
struct RequestWork {
  double token_steps = 0;
  double steps = 0;
  StepWork prefill;   // what has to be computed before its next token
  double link_s = 0;  // seconds of the link before its next token
};

// V = ctx r + m2 / 2: it holds ctx tokens now and one more with each step.
inline double token_steps(double context, const OutputRest& rest) {
  return context * rest.mean + rest.square / 2;
}

struct DevicePrices {
  double memory = 0;  // lambda
  double slot = 0;    // rho

  // kappa
  double finish_s(const CostModel& costs, const RequestWork& work) const;
};

// What kept the first request out of a step that had to stay out.
enum class Refusal : uint8_t { kNone, kMemory, kSlots, kTime };

// u_M and u_B. Deterministic in the calls.
class Shortages {
 public:
  // Once for each plan. Half of the weight is on the last 64.
  void observe(Refusal refusal);
  double memory() const { return memory_; }
  double slots() const { return slots_; }
  DevicePrices prices(const CostModel& costs, double tokens, double max_num_seqs) const;

  std::string save() const;
  Status restore(std::string_view text);

 private:
  double memory_ = 0;
  double slots_ = 0;
};

}  // namespace kvasir
