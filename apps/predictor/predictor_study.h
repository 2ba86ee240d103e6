// How good a predictor of output lengths is on requests of which the outputs are known.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "contract/length_predictor.h"
#include "sched/beliefs/hidden_predictor.h"
#include "sched/mechanisms/output_estimate.h"

namespace kvasir {

struct LengthExample {
  std::vector<Token> prompt;
  float temperature = 1;
  float top_p = 1;
  std::vector<float> hidden;  // PromptFeatures::hidden
  uint32_t output_tokens = 1;
  bool cut = false;
  std::vector<uint32_t> again;  // further outputs of the same request

  PromptFeatures features() const { return {prompt, temperature, top_p, 0, hidden}; }
};
using LengthExamples = std::span<const LengthExample>;

// As a server would: predicts, and then hears the truth.
void teach(LengthPredictor& predictor, LengthExamples examples);
// The two steps: the lengths of the first 70 %, then directions and residuals on the rest, which the first
// step has not seen. In the first an output that was cut counts as having ended there.
void train_in_two_steps(HiddenPredictor& predictor, LengthExamples examples);

// What a request is worth to whoever is to keep room for it.
struct LengthForecast {
  LengthPrediction predicted;
  // Of the class that was predicted, then.
  LengthClass alike;
};
// One for each example. learning: it hears of each afterwards, as when it serves.
std::vector<LengthForecast> forecast(LengthPredictor& predictor, LengthExamples examples, bool learning);

// Tokens of output that cacheopt keeps room for at a confidence, no more than `limit`.
uint32_t padded_length(const LengthForecast& forecast, double confidence, Padding padding, uint32_t limit);

// Means over examples, in tokens. `limit`: no output is longer, so no prediction is taken to be.
struct LengthErrors {
  double mean_absolute = 0;
  double within_50 = 0;  // a share
  double pinball_90 =
      0;  // of the length that is padded to 90 %: 0.9 a token that is missing, 0.1 one that is too many
  double bias = 0;  // prediction - truth
  double told = 0;  // the share of which a direction was told, and of those
  double held = 0;  // the share that it held of
};
LengthErrors errors_of(const std::vector<LengthForecast>& forecasts, LengthExamples examples, uint32_t limit);
// Of the constants that are the best ones for these very examples.
LengthErrors errors_of_best_constant(LengthExamples examples);
// Of who has seen the other answers to the same request and says their median; only examples with `again`
// count. resampling_spread: the mean difference of two answers.
double error_of_other_answers(LengthExamples examples);
double resampling_spread(LengthExamples examples);

// Tokens kept for an output, against those that it has.
struct Provision {
  double covered = 0;       // share of outputs that have room
  double over_tokens = 0;   // in the mean over those that have more than they need
  double under_tokens = 0;  // and over those that have less
  double over = 0;          // their share
  double kept = 0;          // in the mean
};
Provision provision_of(const std::vector<uint32_t>& kept, LengthExamples examples);

// All of it as text: the first kTrainingShare of the examples is for training, the others are the test.
inline constexpr double kTrainingShare = 0.8;
std::string predictor_report(LengthExamples examples, uint32_t limit);

}  // namespace kvasir
