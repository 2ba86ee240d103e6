// How many requests may run at once so that each still gets its tokens in time.
//
// Source: eLLM, Section 4.2.1, Equation 5, with r = 0, which Section 6.1 gives to the systems that it is
// compared with: a request joins a batch, which has b requests with it, only if
//
//   T(b, 0) + WT_max <= SLO
//
//   symbol   here                                                                      unit
//   T(b, 0)  BatchCost::believed(view.costs) of b requests and the sum of their lengths     s
//   WT_max   the longest time since its last token of those that run and decode             s
//   SLO      the least Slo::tpot_ms of the batch                                            s
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "contract/view.h"
#include "sched/mechanisms/batch_cost.h"
#include "sched/policy_settings.h"

namespace kvasir {

enum class BatchRule : uint8_t {
  kFree,        // as many as there is room for
  kWithinTpot,  // of those, as many as Equation 5 allows
};

// The setting "batch": "free" (the default) or "tpot".
BatchRule batch_rule(PolicySettings& settings);

// Is asked about one request after the other; each that joins counts from then on. There is no bound while
// nothing runs, where no request has a TPOT bound, and where the costs are not known.
class BatchBound {
 public:
  explicit BatchBound(const View& view);
  // It may run beside all that run and that joined before it, of which it is one from now on.
  bool join(const SeqView& seq);

 private:
  const BatchCost cost_;
  const bool known_;
  BatchLoad load_;
  double longest_wait_s_ = 0;
  double least_s_ = std::numeric_limits<double>::infinity();  // of the bounds
};

// Of `waiting`, which are to be admitted in this order while there is room, those up to the first that may
// not join.
std::vector<const SeqView*> batch_within_tpot(const View& view, std::vector<const SeqView*> waiting);

// The sequences that may be admitted next, in order and as far as the rule allows: those that were preempted
// and kept their cells, if there are any (`swapped`); otherwise all that wait.
std::vector<const SeqView*> may_join(const View& view, bool swapped, BatchRule rule);

}  // namespace kvasir
