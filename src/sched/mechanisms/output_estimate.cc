#include "sched/mechanisms/output_estimate.h"

#include <algorithm>
#include <cmath>

namespace kvasir {
namespace {

// So few say nothing of a quantile.
constexpr uint64_t kFewest = 10;

// The share of requests that had less output than was predicted.
double share_below(const LengthClass& alike) {
  const auto& q = LengthClass::kQuantiles;
  const auto& r = alike.residuals;
  if (r.front() >= 0) return 0;
  for (size_t i = 1; i < r.size(); ++i) {
    if (r[i] < 0) continue;
    return q[i - 1] + (q[i] - q[i - 1]) * (0 - r[i - 1]) / (r[i] - r[i - 1]);
  }
  return 1;
}

double quantile_estimate(const LengthClass& alike, const LengthPrediction& predicted, double confidence) {
  const double below = share_below(alike);
  double p = confidence;
  if (predicted.deviation == Deviation::kLonger) p = below + confidence * (1 - below);
  if (predicted.deviation == Deviation::kShorter) p = confidence * below;
  return predicted.output_tokens + alike.residual(p);
}

double padded(const View& view, const LengthPrediction& predicted, double confidence,
              const PaddingOptions& options) {
  const double point = predicted.output_tokens;
  const double fixed = point * (1 + options.share);
  if (options.padding == Padding::kShare || predicted.length_class >= view.length_classes.size())
    return fixed;
  const LengthClass& alike = view.length_classes[predicted.length_class];
  if (alike.finished < kFewest) return fixed;
  if (options.padding == Padding::kQuantile) return quantile_estimate(alike, predicted, confidence);
  const double t = hoeffding_padding(alike, confidence);
  return predicted.deviation == Deviation::kShorter ? point - t : point + t;
}

uint32_t generated(const SeqView& seq) {
  return seq.known_tokens - std::min(seq.known_tokens, seq.prompt_tokens);
}

}  // namespace

double hoeffding_padding(const LengthClass& alike, double confidence) {
  const double range = std::max(0.0, alike.residual(0.95) - alike.residual(0.05));
  return std::min(range, std::sqrt(-range * range / 2 * std::log1p(-confidence)));
}

uint32_t estimated_output(const View& view, const SeqView& seq, double confidence,
                          const PaddingOptions& options) {
  const uint32_t most = seq.max_total_tokens - std::min(seq.max_total_tokens, seq.prompt_tokens);
  double tokens = 0;
  if (seq.predicted.output_tokens > 0) {
    // Without what rounding has added to a whole number.
    const double padded_tokens = padded(view, seq.predicted, confidence, options) - 1e-6;
    tokens = std::ceil(std::max<double>(padded_tokens, options.least));
  }
  // It has outlived the estimate, or there is none.
  if (tokens <= generated(seq)) tokens = static_cast<double>(generated(seq)) + options.least;
  return static_cast<uint32_t>(std::min<double>(tokens, most));
}

uint32_t estimated_rest(const View& view, const SeqView& seq, double confidence,
                        const PaddingOptions& options) {
  const uint32_t all = estimated_output(view, seq, confidence, options);
  return std::max(1u, all - std::min(all, generated(seq)));
}

}  // namespace kvasir
