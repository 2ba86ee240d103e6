// Fits a CostModel to the measured times of steps and transfers.
//
// Every coefficient is at least 0, and errors are relative: an observation that took y seconds weighs 1/y^2,
// so that a decode of 10 ms counts as much as a prefill of 1 s.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "contract/cost_model.h"

namespace kvasir {

// The terms of a step's time, in the order of CostModel's coefficients: 1, prefill_rows, prefill_pairs,
// decode_rows, decode_context, projected_tokens, the rows above the knee (0 without one), and the share of
// the experts that is read (0 without experts).
constexpr size_t kStepTerms = 8;
using StepTerms = std::array<double, kStepTerms>;
// Of `costs` only knee_rows (0: none) and expert_share count.
StepTerms terms_of(const StepWork& work, const CostModel& costs);
StepTerms coefficients_of(const CostModel& costs);
void set_coefficients(CostModel& costs, const StepTerms& coefficients);

struct StepObservation {
  StepWork work;
  double seconds = 0;
};
struct TransferObservation {
  double bytes = 0;
  double seconds = 0;
};

// Statistics of |predicted - seconds| / seconds.
struct FitError {
  double mean = 0;
  double p95 = 0;
  double worst = 0;
  size_t observations = 0;
};

FitError summary_of(std::vector<double> errors);

// Sets the step coefficients of `costs` to the best fit, and keeps its other fields, such as expert_share.
// Observations without work or time are ignored. Coefficients without observations become 0. There is a knee,
// the best of a few, where that saves a fifth of the squared relative errors.
FitError fit_steps(std::span<const StepObservation> observations, CostModel& costs);
FitError fit_link(std::span<const TransferObservation> observations, LinkCost& cost);

// The error of the given model on the observations.
FitError error_of(const CostModel& costs, std::span<const StepObservation> observations);

}  // namespace kvasir
