// Refines a CostModel by the steps that really ran.
//
// It keeps the sums of a weighted least-squares fit (sched/beliefs/cost_fit.h), in which a step counts e
// times less after about 2,000 further ones, and beside them the model that it began with, as
// pseudo-observations that do not fade: each says of one coefficient that it is what it was, and weighs as
// one step does that consists of nothing else. So what real steps do not exercise, or cannot tell apart,
// stays as it was. Only where all steps together take more than twice of what it said, or less than half, was
// it measured on another machine than this one is now: then it is scaled as a whole, to within that factor.
#pragma once

#include <cstdint>

#include "contract/cost_model.h"
#include "sched/beliefs/normal_equations.h"

namespace kvasir {

struct CostLearnerOptions {
  double memory_steps = 2000;    // a step's weight falls by e over so many further ones
  uint32_t refit_every = 16;     // observations; oftener only while there were fewer than that in all
  double prior_weight = 1;       // of each pseudo-observation, in steps
  double outlier_factor = 8;     // a step that took more times of what was believed counts as this much
  uint32_t outliers_in_row = 8;  // so many of them are no accident: what was seen before is forgotten
};

// Used by one thread. Deterministic in the calls so far.
class CostLearner {
 public:
  // prior: measured by a profile, or a model that knows nothing (!known()).
  explicit CostLearner(const CostModel& prior = {}, const CostLearnerOptions& options = {});

  // A step of this work took so many seconds, waits for transfers aside. Ignored where either is nothing.
  // True: model() is another now.
  bool observe(const StepWork& work, double seconds);

  const CostModel& model() const { return model_; }
  uint64_t observed() const { return model_.steps_seen; }
  // |believed - real| / real of the steps before they were learnt, an exponential mean over about the last
  // 64; 0 where nothing was believed yet.
  double error() const { return errors_ == 0 ? 0 : error_; }

 private:
  double capped(double believed, double seconds);
  bool refit_due() const;
  void refit();

  const CostLearnerOptions options_;
  const CostModel prior_;
  NormalEquations<6> seen_;
  CostModel model_;
  uint64_t refitted_at_ = 0;  // observations then; 0: the next one is to be fitted
  uint32_t outliers_ = 0;     // in a row
  double error_ = 0;
  uint64_t errors_ = 0;
};

}  // namespace kvasir
