// Refines a CostModel by real steps.
//
// It keeps the sums of a weighted least-squares fit (sched/beliefs/cost_fit.h), in which a step's weight
// falls by e after about 2,000 further steps. The initial model is kept as pseudo-observations that do not
// fade: one for each coefficient, with the weight of a step that consists of this term only. So coefficients
// that real steps do not exercise, or cannot distinguish, keep their initial values. If all steps together
// take more than twice, or less than half, of the time by the initial model, the machine has changed since it
// was measured: then the initial model is scaled as a whole, to within that factor. The knee stays at the
// rows where the initial model has it, and only what a row above it takes is learnt; without one none is
// learnt.
//
// With nothing to begin with, what the first steps do not tell apart is put down to their rows: then a policy
// that sizes steps in time begins with small ones, where it would else believe that rows are free.
#pragma once

#include <cstdint>

#include "contract/cost_model.h"
#include "sched/beliefs/cost_fit.h"
#include "sched/beliefs/normal_equations.h"

namespace kvasir {

struct CostLearnerOptions {
  double memory_steps = 2000;    // a step's weight falls by e over this many further steps
  uint32_t refit_every = 16;     // observations; more often while there were fewer in all
  double prior_weight = 1;       // of each pseudo-observation, in steps
  double outlier_factor = 8;     // a step's time is capped at this multiple of the estimate
  uint32_t outliers_in_row = 8;  // after so many capped steps in a row, earlier steps are forgotten
};

// Used by one thread. Deterministic in the calls so far.
class CostLearner {
 public:
  // prior: measured by a profile, or a model that knows nothing (!known()).
  explicit CostLearner(const CostModel& prior = {}, const CostLearnerOptions& options = {});

  // A step with this work took `seconds`, without its waits for transfers. Ignored if either is zero. True:
  // model() has changed.
  bool observe(const StepWork& work, double seconds);

  const CostModel& model() const { return model_; }
  uint64_t observed() const { return model_.steps_seen; }
  // |believed - real| / real of steps, each before it was learnt: an exponential mean over about the last 64.
  // 0 if there was no model yet.
  double error() const { return errors_ == 0 ? 0 : error_; }

 private:
  double capped(double believed, double seconds);
  bool refit_due() const;
  void refit();

  const CostLearnerOptions options_;
  const CostModel prior_;
  NormalEquations<kStepTerms> seen_;
  CostModel model_;
  uint64_t refitted_at_ = 0;  // the number of observations at the last fit; 0: fit at the next one
  uint32_t outliers_ = 0;     // in a row
  double longest_s_ = 0;      // of the steps so far
  double error_ = 0;
  uint64_t errors_ = 0;
};

}  // namespace kvasir
