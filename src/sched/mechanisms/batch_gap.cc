#include "sched/mechanisms/batch_gap.h"

#include <algorithm>
#include <cmath>

#include "sched/mechanisms/token_due.h"

namespace kvasir {

void BatchGap::add_to(Sums& sums, double context, const Slo* slo) const {
  if (slo && slo->tbt_ms > 0) sums.least_every = std::min(sums.least_every, slo->tbt_ms / 1e3);
  if (slo && slo->tpot_ms > 0) sums.least_mean = std::min(sums.least_mean, slo->tpot_ms / 1e3);
  if (!slo || std::isinf(allowed_gap(*slo)))
    sums.least_mean = std::min(sums.least_mean, options_.otherwise_s);
  sums.rows += 1;
  sums.context += context;
}

void BatchGap::add(double context, const Slo* slo) {
  add_to(sums_, context, slo);
}

bool BatchGap::fits(double context, const Slo* slo) const {
  Sums sums = sums_;
  add_to(sums, context, slo);
  return within(sums);
}

double BatchGap::margin_for(double gap_s) const {
  if (gap_s != margin_gap_s_) {
    margin_gap_s_ = gap_s;
    margin_ = margins_.priced(kAnyRows, costs_.step_s / gap_s, options_.steps);
  }
  return margin_;
}

bool BatchGap::within(const Sums& sums) const {
  const double step_s = costs_.decode_seconds(sums.rows, sums.context);
  const double every_s = sums.least_every;
  if (std::isfinite(every_s) && margin_for(every_s) * step_s > every_s) return false;
  return mean_ * step_s <= sums.least_mean;
}

}  // namespace kvasir
