#include "sched/mechanisms/allow_prefill_budget.h"

#include <algorithm>

namespace kvasir {
namespace {

constexpr double kLeastQuantile = 0.05;

uint32_t output_tokens(const SeqView& seq) {
  return seq.known_tokens - std::min(seq.known_tokens, seq.prompt_tokens);
}

// What is left of a whole output, of which `so_far` tokens are there.
uint32_t left_of(uint32_t whole, uint32_t so_far) {
  return whole > so_far ? whole - so_far : 1;
}

uint32_t least_output(const SeqView& seq, const std::vector<LengthClass>& classes) {
  if (seq.predicted.output_tokens == 0 || seq.predicted.length_class >= classes.size()) return 0;
  const LengthClass& c = classes[seq.predicted.length_class];
  if (c.finished == 0) return c.low;
  // The class bounds the predictions; the true outputs of requests predicted so may be shorter.
  const double least = seq.predicted.output_tokens + c.residual(kLeastQuantile);
  return static_cast<uint32_t>(std::clamp(least, 0.0, static_cast<double>(c.low)));
}

double seconds_of(uint32_t millis) {
  return millis / 1e3;
}

}  // namespace

uint32_t least_future_tokens(const SeqView& seq, const std::vector<LengthClass>& classes) {
  return left_of(least_output(seq, classes), output_tokens(seq));
}

uint32_t predicted_future_tokens(const SeqView& seq) {
  return left_of(seq.predicted.output_tokens, output_tokens(seq));
}

PrefillAllowance allowed_prefill(const SeqView& seq, const std::vector<LengthClass>& classes, Nanos now,
                                 const DecodePace& pace, const RestOfOutput* survival) {
  PrefillAllowance out;
  const auto narrow = [&](double left, double whole) {
    out.seconds = std::min(out.seconds, std::max(left, 0.0));
    out.share = std::min(out.share, std::max(left, 0.0) / whole);
  };
  const auto since = [&](Nanos time) { return time > 0 ? to_seconds(now - time) : 0; };
  if (seq.slo.tpot_ms > 0) {
    const double bound = seconds_of(seq.slo.tpot_ms);
    const double n_past = output_tokens(seq) - 1.0;
    const double t_past = since(seq.first_token_time);
    const auto slack = [&](double n_future) {
      return bound * (n_past + n_future) - (t_past + n_future * pace.tpot_s);
    };
    double n_future = 0, n_expected = 0;
    if (survival) {
      const OutputRest rest = survival->of(seq);
      n_future = rest.least;
      n_expected = rest.mean;
    } else {
      n_future = least_future_tokens(seq, classes);
      n_expected = predicted_future_tokens(seq);
    }
    if (slack(n_future) < 0 && slack(n_expected) < 0) return {0, 0, true};
    narrow(slack(n_future), bound * (n_past + n_future));
  }
  if (seq.slo.tbt_ms > 0) {
    const double bound = seconds_of(seq.slo.tbt_ms);
    const double left = bound - since(seq.last_token_time);
    if (left < 0 || bound <= pace.step_s) return {0, 0, true};
    narrow(left - pace.step_s, bound);
  }
  return out;
}

bool beyond_reach(const SeqView& seq, const CostModel& costs) {
  StepWork alone;
  alone.add_decode(seq.known_tokens);
  const double least_s = costs.step_seconds(alone);
  const auto shorter = [&](uint32_t millis) { return millis > 0 && seconds_of(millis) < least_s; };
  return shorter(seq.slo.tpot_ms) || shorter(seq.slo.tbt_ms);
}

}  // namespace kvasir
