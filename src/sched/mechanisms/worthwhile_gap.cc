#include "sched/mechanisms/worthwhile_gap.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace kvasir {
namespace {

constexpr double kMoreWorth = 1.05;

// All classes from `kept` on are served.
double value_of_gap(std::span<const GapClass> kept, double all_worth, double watched_s,
                    const CostModel& costs, const StepMargins& margins, const DeviceLimits& limits) {
  GapClass sum{.gap_s = std::isinf(kept.front().gap_s) ? limits.otherwise_s : kept.front().gap_s};
  for (const GapClass& c : kept) {
    sum.requests += c.requests;
    sum.worth += c.worth;
    sum.prompt_tokens += c.prompt_tokens;
    sum.output_tokens += c.output_tokens;
  }
  const double steps = sum.output_tokens / sum.requests;
  const double prompt = sum.prompt_tokens / sum.requests;
  const double context = prompt + steps / 2;
  const double row_s = costs.decode_row_s + costs.context_s * context + costs.prefill_row_s * prompt / steps;
  const double weights_s = costs.weights_s();
  const double margin = margins.priced(kAnyRows, weights_s / sum.gap_s, steps);
  // Rows of a step for each of its decodes, and what is left of the gap: below the knee and above.
  const double rows = 1 + prompt / steps;
  const double left_s = sum.gap_s / margin - weights_s;
  const double above_s = costs.above_knee_s * costs.knee_rows;
  const double by_time = std::min(left_s / std::max(row_s, 1e-12),
                                  (left_s + above_s) / std::max(row_s + costs.above_knee_s * rows, 1e-12));
  const double batch = std::min({by_time, limits.tokens / std::max(context, 1.0), limits.max_num_seqs});
  if (batch < 1) return 0;
  const double step_s =
      weights_s + batch * row_s + costs.above_knee_s * std::max(0.0, batch * rows - costs.knee_rows);
  const double tokens_per_s = batch / step_s;
  return sum.worth / all_worth * std::min(1.0, tokens_per_s * watched_s / sum.output_tokens);
}

}  // namespace

double worthwhile_gap(const ArrivingWork& work, const CostModel& costs, const StepMargins& margins,
                      const DeviceLimits& limits, double kept) {
  const auto& classes = work.classes();
  if (classes.empty() || !costs.known()) return 0;
  double all = 0;
  for (const GapClass& c : classes) all += c.worth;
  double best = 0, best_gap_s = 0, kept_value = -1;  // below 0: unknown yet
  for (size_t i = 0; i < classes.size(); ++i) {
    const double value =
        value_of_gap(std::span(classes).subspan(i), all, work.seconds(), costs, margins, limits);
    if (classes[i].gap_s >= kept && kept_value < 0) kept_value = value;
    if (value <= best) continue;
    best = value;
    best_gap_s = i == 0 ? 0 : classes[i].gap_s;
  }
  if (best == 0) return std::numeric_limits<double>::infinity();
  return best <= kMoreWorth * std::max(kept_value, 0.0) ? kept : best_gap_s;
}

}  // namespace kvasir
