#include "sched/beliefs/cost_fit.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sched/beliefs/normal_equations.h"

namespace kvasir {
namespace {

// 2^(i / 2), of rows.
constexpr double kKnees[] = {16, 23, 32, 45, 64, 91, 128, 181, 256, 362, 512};
// Of the squared errors without a knee. One more coefficient saves a little of any noise.
constexpr double kLeftByAKnee = 0.8;
// Relative errors whose squares are less, in the mean, are rounding.
constexpr double kExact = 1e-12;

bool usable(const StepObservation& o) {
  return o.seconds > 0 && std::isfinite(o.seconds) && !o.work.empty();
}

}  // namespace

FitError summary_of(std::vector<double> errors) {
  if (errors.empty()) return {};
  std::sort(errors.begin(), errors.end());
  FitError out;
  out.observations = errors.size();
  for (double e : errors) out.mean += e / static_cast<double>(errors.size());
  // The smallest error that 95 % of them do not exceed.
  const auto rank = static_cast<size_t>(std::ceil(0.95 * static_cast<double>(errors.size())));
  out.p95 = errors[std::max<size_t>(rank, 1) - 1];
  out.worst = errors.back();
  return out;
}

StepTerms terms_of(const StepWork& work, const CostModel& costs) {
  return {1,
          work.prefill_rows,
          work.prefill_pairs,
          work.decode_rows,
          work.decode_context,
          work.projected_tokens,
          costs.knee_rows > 0 ? work.rows_above(costs.knee_rows) : 0,
          costs.experts_read(work.prefill_rows + work.decode_rows)};
}

StepTerms coefficients_of(const CostModel& c) {
  return {c.step_s,    c.prefill_row_s,     c.pair_s,       c.decode_row_s,
          c.context_s, c.projected_token_s, c.above_knee_s, c.experts_s};
}

void set_coefficients(CostModel& c, const StepTerms& values) {
  c.step_s = values[0];
  c.prefill_row_s = values[1];
  c.pair_s = values[2];
  c.decode_row_s = values[3];
  c.context_s = values[4];
  c.projected_token_s = values[5];
  c.above_knee_s = values[6];
  c.experts_s = values[7];
}

namespace {

struct Fit {
  CostModel costs;
  double squares = 0;  // of the relative errors, their mean
};

Fit fit_with(std::span<const StepObservation> observations, const CostModel& others, double knee_rows) {
  NormalEquations<kStepTerms> equations;
  Fit out{others};
  out.costs.knee_rows = knee_rows;
  for (const StepObservation& o : observations) {
    if (usable(o)) equations.add(terms_of(o.work, out.costs), o.seconds, 1 / (o.seconds * o.seconds));
  }
  set_coefficients(out.costs, equations.solve());
  out.costs.knee_rows = out.costs.above_knee_s > 0 ? knee_rows : 0;
  double seen = 0;
  for (const StepObservation& o : observations) {
    if (!usable(o)) continue;
    const double error = out.costs.step_seconds(o.work) / o.seconds - 1;
    out.squares += error * error;
    seen += 1;
  }
  out.squares /= std::max(seen, 1.0);
  return out;
}

}  // namespace

FitError fit_steps(std::span<const StepObservation> observations, CostModel& costs) {
  const Fit linear = fit_with(observations, costs, 0);
  Fit best = linear;
  if (linear.squares > kExact) {
    for (double knee : kKnees) {
      const Fit fit = fit_with(observations, costs, knee);
      if (fit.squares < std::min(best.squares, kLeftByAKnee * linear.squares)) best = fit;
    }
  }
  costs = best.costs;
  return error_of(costs, observations);
}

FitError fit_link(std::span<const TransferObservation> observations, LinkCost& cost) {
  NormalEquations<2> equations;
  std::vector<double> errors;
  for (const TransferObservation& o : observations) {
    if (o.seconds > 0) equations.add({1, o.bytes}, o.seconds, 1 / (o.seconds * o.seconds));
  }
  const auto c = equations.solve();
  cost = {c[0], c[1]};
  for (const TransferObservation& o : observations) {
    if (o.seconds > 0) errors.push_back(std::abs(cost.seconds(o.bytes) - o.seconds) / o.seconds);
  }
  return summary_of(std::move(errors));
}

FitError error_of(const CostModel& costs, std::span<const StepObservation> observations) {
  std::vector<double> errors;
  for (const StepObservation& o : observations) {
    if (usable(o)) errors.push_back(std::abs(costs.step_seconds(o.work) - o.seconds) / o.seconds);
  }
  return summary_of(std::move(errors));
}

}  // namespace kvasir
