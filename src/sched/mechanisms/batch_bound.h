// Bounds the number of running requests so that each gets its tokens in time.
//
// Source: eLLM, the first constraint of Equation 1 (Section 4.1). Equation 5 (Section 4.2.2) is the objective
// under these constraints, and Section 6.1 gives it to the baselines with r = 0. A request joins a batch,
// which then has b requests, only if
//
//   T(b, 0) + WT_max <= SLO
//
//   symbol   here                                                                      unit
//   T(b, 0)  BatchCost::believed(view.costs) of b requests and the sum of their lengths,
//            and what prompts add to it (prompt_share.h)                                    s
//   WT_max   the longest time since its last token of those that run and decode             s
//   SLO      the least Slo::tpot_ms of the batch                                            s
//
// Our deviation: the paper takes WT_max from the waiting queue (Section 4.2.2). TPOT counts no time before
// the first token, and far beyond the capacity that wait alone exceeds any bound on TPOT.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "contract/view.h"
#include "sched/mechanisms/batch_cost.h"
#include "sched/mechanisms/prompt_share.h"
#include "sched/policy_settings.h"

namespace kvasir {

struct BatchRule {
  bool within_tpot = false;  // as many as the bound allows; otherwise as many as there is room for
  PromptTime prompts = PromptTime::kAmortised;
};

// The settings "batch": "free" (the default) or "tpot", and with the latter "prompts" (prompt_share.h).
BatchRule batch_rule(PolicySettings& settings);

// Refers to the view. Decides on one request after the other; each request that joins counts from then on.
// There is no bound if nothing runs, no request has a TPOT bound, or the costs are unknown.
class BatchBound {
 public:
  BatchBound(const View& view, PromptTime prompts);
  // Whether the sequence may run beside all that run or have joined. If so, it joins.
  bool join(const SeqView& seq);

 private:
  const CostModel& costs_;
  const PromptTime prompts_;
  const BatchCost cost_;
  const bool known_;
  BatchLoad load_;
  double prompts_s_ = 0;  // what prompts add to a step of the batch
  double longest_wait_s_ = 0;
  double least_s_ = std::numeric_limits<double>::infinity();  // of the bounds
};

// The sequences of `waiting`, in order of admission, up to the first that may not join.
std::vector<const SeqView*> batch_within_tpot(const View& view, std::vector<const SeqView*> waiting,
                                              PromptTime prompts);

// The sequences that may be admitted next, in order and as far as the rule allows: if any were preempted and
// kept their cells (`swapped`), those; otherwise all that wait.
std::vector<const SeqView*> may_join(const View& view, bool swapped, BatchRule rule);

}  // namespace kvasir
