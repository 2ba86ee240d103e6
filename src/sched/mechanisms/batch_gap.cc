#include "sched/mechanisms/batch_gap.h"

#include <algorithm>
#include <cmath>

#include "sched/mechanisms/token_due.h"

namespace kvasir {

void BatchGap::add_to(Sums& sums, SeqId seq, double context, const Slo* slo) const {
  const auto keep_least = [](GapBound& least, double gap_s, SeqId of) {
    if (gap_s < least.gap_s) least = {gap_s, of};
  };
  if (slo && slo->tbt_ms > 0) keep_least(sums.every, slo->tbt_ms / 1e3, seq);
  if (slo && slo->tpot_ms > 0) keep_least(sums.mean, slo->tpot_ms / 1e3, seq);
  if (!slo || std::isinf(allowed_gap(*slo))) keep_least(sums.mean, options_.otherwise_s, {});
  sums.rows += 1;
  sums.context += context;
}

void BatchGap::add(SeqId seq, double context, const Slo* slo) {
  add_to(sums_, seq, context, slo);
}

std::optional<GapBound> BatchGap::exceeded_with(SeqId seq, double context, const Slo* slo) const {
  Sums sums = sums_;
  add_to(sums, seq, context, slo);
  const double step_s = costs_.decode_seconds(sums.rows, sums.context);
  const double every_s = sums.every.gap_s;
  if (std::isfinite(every_s) && margin_for(every_s) * step_s > every_s) return sums.every;
  if (mean_ * step_s > sums.mean.gap_s) return sums.mean;
  return std::nullopt;
}

double BatchGap::margin_for(double gap_s) const {
  if (gap_s != margin_gap_s_) {
    margin_gap_s_ = gap_s;
    margin_ = margins_.priced(kAnyRows, costs_.weights_s() / gap_s, options_.steps);
  }
  return margin_;
}

}  // namespace kvasir
