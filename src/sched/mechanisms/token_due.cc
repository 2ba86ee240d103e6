#include "sched/mechanisms/token_due.h"

#include <algorithm>

namespace kvasir {
namespace {

double in_seconds(uint32_t millis) {
  return millis / 1e3;
}

}  // namespace

double allowed_gap(const Slo& slo) {
  double gap_s = std::numeric_limits<double>::infinity();
  if (slo.tbt_ms > 0) gap_s = std::min(gap_s, in_seconds(slo.tbt_ms));
  if (slo.tpot_ms > 0) gap_s = std::min(gap_s, in_seconds(slo.tpot_ms));
  return gap_s;
}

TokenDue token_due(const SeqView& seq, Nanos now, double step_s, const OutputRest& rest) {
  TokenDue due;
  const Slo& slo = seq.slo;
  if (!slo.any()) return due;
  const double age_s = to_seconds(now - seq.arrival);
  if (slo.e2el_ms > 0) {
    const double left_s = in_seconds(slo.e2el_ms) - age_s;
    due.missed = left_s < 0;
    due.left_s = left_s - rest.mean * step_s;
    due.behind = due.left_s < 0 && seq.known_tokens > seq.prompt_tokens;
  }
  if (seq.known_tokens <= seq.prompt_tokens) {
    if (slo.ttft_ms == 0) return due;
    const double left_s = in_seconds(slo.ttft_ms) - age_s;
    due.missed |= left_s < 0;
    due.left_s = std::min(due.left_s, left_s);
    return due;
  }
  const bool first_in_flight = seq.first_token_time == 0;
  const double first_age_s = first_in_flight ? 0 : to_seconds(now - seq.first_token_time);
  if (slo.ttft_ms > 0) due.missed |= age_s - first_age_s > in_seconds(slo.ttft_ms);
  due.missed |= slo.tbt_ms > 0 && seq.late_gaps > 0;
  const bool on_its_way = seq.in_flight > 0 || seq.last_token_time == 0;
  const double gap_s = on_its_way ? 0 : to_seconds(now - seq.last_token_time);
  if (slo.tbt_ms > 0) {
    const double left_s = in_seconds(slo.tbt_ms) - gap_s;
    due.missed |= left_s < 0;
    due.left_s = std::min(due.left_s, left_s);
  }
  if (slo.tpot_ms > 0) {
    const double after_first = seq.known_tokens - seq.prompt_tokens;
    const double left_s =
        in_seconds(slo.tpot_ms) * (after_first + rest.least) - first_age_s - rest.least * step_s;
    due.behind |= left_s < 0;
    due.left_s = std::min(due.left_s, left_s);
  }
  return due;
}

}  // namespace kvasir
