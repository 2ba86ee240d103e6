#include "sched/mechanisms/output_estimate.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvasir {
namespace {

// So few say nothing of a quantile.
constexpr uint64_t kFewest = 10;

// The share of requests with a residual below `tokens`.
double share_below(const LengthClass& alike, double tokens) {
  const auto& q = LengthClass::kQuantiles;
  const auto& r = alike.residuals;
  if (r.front() >= tokens) return 0;
  for (size_t i = 1; i < r.size(); ++i) {
    if (r[i] < tokens) continue;
    return q[i - 1] + (q[i] - q[i - 1]) * (tokens - r[i - 1]) / (r[i] - r[i - 1]);
  }
  return 1;
}

size_t side_of(Deviation deviation) {
  if (deviation == Deviation::kUnknown) return 1;
  return deviation == Deviation::kShorter ? 0 : 2;
}

// By side_of().
std::array<double, 3> quantile_paddings(const LengthClass& alike, double confidence) {
  const double below = share_below(alike, 0);
  return {alike.residual(confidence * below), alike.residual(confidence),
          alike.residual(below + confidence * (1 - below))};
}

// The quantile of the residuals beyond `above`, of those on the side of the deviation as long as there are
// any.
double padding_beyond(const LengthClass& alike, double confidence, Deviation deviation, double above) {
  const double least = deviation == Deviation::kLonger ? std::max(above, 0.0) : above;
  const double low = share_below(alike, least);
  const double side = deviation == Deviation::kShorter ? share_below(alike, 0) : 1;
  const double high = side > low ? side : 1;
  return alike.residual(low + confidence * (high - low));
}

uint32_t generated(const SeqView& seq) {
  return seq.known_tokens - std::min(seq.known_tokens, seq.prompt_tokens);
}

}  // namespace

double hoeffding_padding(const LengthClass& alike, double confidence) {
  const double range = std::max(0.0, alike.residual(0.95) - alike.residual(0.05));
  return std::min(range, std::sqrt(-range * range / 2 * std::log1p(-confidence)));
}

OutputEstimate::OutputEstimate(const View& view, double confidence, const PaddingOptions& options)
    : options_(options), confidence_(confidence) {
  if (options.padding == Padding::kShare || options.padding == Padding::kTokens) return;
  if (options.survival) classes_ = view.length_classes;
  padding_.reserve(view.length_classes.size());
  for (const LengthClass& alike : view.length_classes) {
    if (alike.finished < kFewest) {
      padding_.emplace_back();
    } else if (options.padding == Padding::kQuantile) {
      padding_.emplace_back(quantile_paddings(alike, confidence));
    } else {
      const double t = hoeffding_padding(alike, confidence);
      padding_.push_back({{-t, t, t}});
    }
  }
}

double OutputEstimate::padded(const SeqView& seq) const {
  const LengthPrediction& predicted = seq.predicted;
  const double point = predicted.output_tokens;
  if (options_.padding == Padding::kTokens) return point + options_.tokens;
  const size_t alike = predicted.length_class;
  if (alike >= padding_.size() || !padding_[alike]) return point * (1 + options_.share);
  if (options_.survival && options_.padding == Padding::kQuantile) {
    return point + padding_beyond(classes_[alike], confidence_, predicted.deviation, generated(seq) - point);
  }
  return point + (*padding_[alike])[side_of(predicted.deviation)];
}

uint32_t OutputEstimate::output(const SeqView& seq) const {
  const uint32_t most = seq.max_total_tokens - std::min(seq.max_total_tokens, seq.prompt_tokens);
  double tokens = 0;
  if (seq.predicted.output_tokens > 0) {
    // Without what rounding has added to a whole number.
    const double padded_tokens = padded(seq) - 1e-6;
    tokens = std::ceil(std::max<double>(padded_tokens, options_.least));
  }
  // It has outlived the estimate, or there is none.
  if (tokens <= generated(seq)) tokens = static_cast<double>(generated(seq)) + options_.least;
  return static_cast<uint32_t>(std::min<double>(tokens, most));
}

uint32_t OutputEstimate::rest(const SeqView& seq) const {
  const uint32_t all = output(seq);
  return std::max(1u, all - std::min(all, generated(seq)));
}

}  // namespace kvasir
