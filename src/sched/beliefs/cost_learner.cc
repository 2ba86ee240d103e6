#include "sched/beliefs/cost_learner.h"

#include <algorithm>
#include <cmath>

#include "sched/beliefs/cost_fit.h"

namespace kvasir {
namespace {

constexpr double kErrorMemory = 64;
// A prior that is off by less than this factor is of this machine.
constexpr double kSameMachine = 2;
// With nothing to begin with, so many steps must be seen before one can be called an outlier.
constexpr uint64_t kFewestSteps = 64;
// With nothing to begin with: the weight, in steps, of the guess that a step costs nothing beside its rows.
constexpr double kRowsFirst = 0.01;

}  // namespace

CostLearner::CostLearner(const CostModel& prior, const CostLearnerOptions& options)
    : options_(options), prior_(prior), model_(prior) {}

bool CostLearner::observe(const StepWork& work, double seconds) {
  if (work.empty() || !(seconds > 0) || !std::isfinite(seconds)) return false;
  double taken = seconds;
  if (model_.known()) {
    const double believed = model_.step_seconds(work);
    const double error = std::abs(believed - seconds) / seconds;
    // The first ones count evenly.
    error_ += (error - error_) / std::min(static_cast<double>(++errors_), kErrorMemory);
    taken = capped(believed, seconds);
  }
  seen_.scale(1 - 1 / options_.memory_steps);
  StepTerms row = terms_of(work, prior_);
  for (double& term : row) term /= seconds;
  seen_.add(row, taken / seconds);
  longest_s_ = std::max(longest_s_, seconds);
  ++model_.steps_seen;
  if (!refit_due()) return false;
  refit();
  return true;
}

void CostLearner::refit() {
  refitted_at_ = model_.steps_seen;
  const StepTerms before = coefficients_of(prior_);
  const double off = seen_.best_multiple(before);
  const double scale = off > 0 ? off / std::clamp(off, 1 / kSameMachine, kSameMachine) : 1;
  NormalEquations<kStepTerms> all = seen_;
  for (size_t i = 0; i < kStepTerms; ++i) {
    if (!(before[i] > 0)) continue;
    StepTerms row{};
    row[i] = 1 / (scale * before[i]);
    all.add(row, 1, options_.prior_weight);
  }
  if (!prior_.known()) {
    for (const size_t of_a_step : {size_t{0}, kStepTerms - 1}) {  // weights, and experts
      StepTerms row{};
      row[of_a_step] = 1 / longest_s_;
      all.add(row, 0, kRowsFirst);
    }
  }
  set_coefficients(model_, all.solve());
}

// Most likely other programs had the machine; unless it goes on.
double CostLearner::capped(double believed, double seconds) {
  const double most = options_.outlier_factor * believed;
  const bool trusted = prior_.known() || model_.steps_seen >= kFewestSteps;
  if (!trusted || !(seconds > most) || !(most > 0)) {
    outliers_ = 0;
    return seconds;
  }
  outliers_ = std::min(outliers_ + 1, options_.outliers_in_row);
  if (outliers_ < options_.outliers_in_row) return most;
  // What was seen before is of a machine that is no more, and would outweigh it: relative to a short time, a
  // long one is far off.
  seen_ = {};
  outliers_ = 0;
  refitted_at_ = 0;
  return seconds;
}

// With nothing to begin with, every power of two of the first steps is worth a fit.
bool CostLearner::refit_due() const {
  const uint64_t n = model_.steps_seen;
  if (refitted_at_ == 0) return true;
  if (n < options_.refit_every) return (n & (n - 1)) == 0;
  return n - refitted_at_ >= options_.refit_every;
}

}  // namespace kvasir
