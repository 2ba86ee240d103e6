// Predictions of output lengths.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "contract/step.h"

namespace kvasir {

// What a predictor may know of a request. It does not know what ends the output: neither max_tokens, which a
// client may have set to the length that it wants, nor a forced length (SamplingParams::forced_end).
struct PromptFeatures {
  std::span<const Token> prompt;
  float temperature = 1.0f;
  float top_p = 1.0f;
  // The output length that the client announces; 0: none. Only an oracle reads it.
  uint32_t output_tokens_hint = 0;
  // HiddenRow::row of the prompt's last token; empty until its prefill has ended, and if it was not
  // requested.
  std::span<const float> hidden;
};

// Whether the true length is likely to be below or above the point.
enum class Deviation : int8_t { kShorter = -1, kUnknown = 0, kLonger = 1 };

// The predicted output length of one request.
struct LengthPrediction {
  uint32_t output_tokens = 0;  // the point estimate; 0: nothing is predicted
  uint8_t length_class = 0;    // index into View::length_classes
  Deviation deviation = Deviation::kUnknown;
  friend bool operator==(const LengthPrediction&, const LengthPrediction&) = default;
};

// Requests with a predicted length in [low, high), and the prediction errors of those that have finished.
struct LengthClass {
  // The probabilities of `residuals`.
  static constexpr std::array kQuantiles = {.01, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .99};

  uint32_t low = 0;
  uint32_t high = 0;
  uint32_t median_tokens = 0;  // of the true lengths
  uint64_t finished = 0;       // requests behind the residuals; 0: nothing is known
  // Quantiles of true length - point, in tokens, ascending.
  std::array<float, kQuantiles.size()> residuals{};

  // The residual at probability `p` in [0, 1]: linear between the kept quantiles, constant beyond them.
  double residual(double p) const {
    if (p <= kQuantiles.front()) return residuals.front();
    for (size_t i = 1; i < kQuantiles.size(); ++i) {
      if (p > kQuantiles[i]) continue;
      const double share = (p - kQuantiles[i - 1]) / (kQuantiles[i] - kQuantiles[i - 1]);
      return residuals[i - 1] + share * (residuals[i] - residuals[i - 1]);
    }
    return residuals.back();
  }
  friend bool operator==(const LengthClass&, const LengthClass&) = default;
};

// Called by the engine's thread only. Deterministic in the calls so far.
class LengthPredictor {
 public:
  virtual ~LengthPredictor() = default;

  // Called when a request arrives, and again when its hidden row is known.
  virtual LengthPrediction predict(const PromptFeatures& features) = 0;
  // Whether it wants PromptFeatures::hidden.
  virtual bool reads_hidden() const { return false; }
  // A request that was predicted so at last has ended by itself after so many tokens. Must return in
  // microseconds.
  virtual void learn(const PromptFeatures& features, const LengthPrediction& predicted,
                     uint32_t output_tokens) = 0;
  // It was cut after so many tokens: it would have had more. What is not known then is not learnt.
  virtual void learn_at_least(const PromptFeatures&, const LengthPrediction&, uint32_t) {}
  // One for each value of LengthPrediction::length_class; the same number for its lifetime, and at most 256.
  virtual const std::vector<LengthClass>& classes() const = 0;

  // All that it has learnt, as text; and the way back. kCorrupt: not what save() of its kind gave.
  virtual std::string save() const { return {}; }
  virtual Status load(std::string_view) { return {}; }
};

}  // namespace kvasir
