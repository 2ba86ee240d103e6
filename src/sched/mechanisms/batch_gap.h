// Whether a batch leaves each of its requests a short enough gap between two tokens.
//
//   x T(D + i) <= g     for the least bound g on a gap, and for the least mean g
//
// T is a step of all that decode. A request with a longer gap decodes in each step, too. (Leaving it out of
// steps, as Scorpio's virtual batch size, arXiv 2505.23022, gained nothing here, and lost where steps vary.)
// The margin x is StepMargins::priced() for a bound on every gap, and the mean ratio for a bound on the mean.
//
//   symbol    here                                                    unit
//   D         the requests given to add()                             -
//   g         Slo::tbt_ms, Slo::tpot_ms; `otherwise` without either   s
//
// Source: a batch bounded by a gap is from eLLM's Equation 1 (mechanisms/batch_bound.h). The margin is ours.
// Nothing is kept for the prompts that are to come: prompts get what decodes leave of a step, so a batch that
// leaves them nothing does not grow. (Keeping the share of time that arriving prompts take cost 2 to 7 points
// at gaps of 12 ms.)
#pragma once

#include <limits>
#include <optional>

#include "contract/cost_model.h"
#include "contract/ids.h"
#include "contract/slo.h"
#include "sched/mechanisms/step_margins.h"

namespace kvasir {

struct BatchGapOptions {
  double steps = 1;  // that a request passes: the margin's exponent
  // The gap of requests without a bound, and of those that have missed theirs: an aim, not a promise.
  double otherwise_s = std::numeric_limits<double>::infinity();
};

// A gap in seconds, and the request that states it; 0: `otherwise`.
struct GapBound {
  double gap_s = std::numeric_limits<double>::infinity();
  SeqId seq{};
};

class BatchGap {
 public:
  BatchGap(const CostModel& costs, const StepMargins& margins, const BatchGapOptions& options)
      : costs_(costs), margins_(margins), options_(options), mean_(margins.mean(kAnyRows)) {}

  // `slo`: null if no bound of `seq` counts. Any request may be added, also one that does not fit.
  void add(SeqId seq, double context, const Slo* slo);
  // The gap that would be exceeded with it; none: it fits.
  std::optional<GapBound> exceeded_with(SeqId seq, double context, const Slo* slo) const;

 private:
  struct Sums {
    double rows = 0, context = 0;
    GapBound every, mean;  // the least of each kind
  };
  void add_to(Sums& sums, SeqId seq, double context, const Slo* slo) const;
  double margin_for(double gap_s) const;

  const CostModel& costs_;
  const StepMargins& margins_;
  const BatchGapOptions options_;
  const double mean_;  // measured / believed
  Sums sums_;
  mutable double margin_gap_s_ = -1, margin_ = 1;  // the last one asked for
};

}  // namespace kvasir
