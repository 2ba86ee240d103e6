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

// Predicts and then learns the true length, as in a server.
void teach(LengthPredictor& predictor, LengthExamples examples);
// Trains the lengths on the first 70 % of the examples, then directions and residuals on the others, which
// the first step has not seen. In the first step an output that was cut counts as if it had ended there.
void train_in_two_steps(HiddenPredictor& predictor, LengthExamples examples);

// All that a policy knows of an output's length when it reserves memory for it.
struct LengthForecast {
  LengthPrediction predicted;
  LengthClass alike;  // the predicted class, as it was at that time
};
// One for each example. learning: the predictor learns from each example afterwards, as in a server.
std::vector<LengthForecast> forecast(LengthPredictor& predictor, LengthExamples examples, bool learning);

// The tokens of output, at most `limit`, that cacheopt reserves at a confidence.
uint32_t padded_length(const LengthForecast& forecast, double confidence, Padding padding, uint32_t limit);

// Means over the examples, in tokens. `limit`: no output is longer, so predictions are cut to it.
struct LengthErrors {
  double mean_absolute = 0;
  double within_50 = 0;  // a share
  // Of the length that is padded to 90 %: 0.9 for each token too few, 0.1 for each token too many.
  double pinball_90 = 0;
  double bias = 0;  // prediction - truth
  double told = 0;  // share of the examples with a predicted direction of the error
  double held = 0;  // share of these whose direction was right
};
LengthErrors errors_of(const std::vector<LengthForecast>& forecasts, LengthExamples examples, uint32_t limit);
// The errors of the constants that are best for these very examples.
LengthErrors errors_of_best_constant(LengthExamples examples);
// The mean absolute error of predicting the median of the other answers to the same request. Only examples
// with `again` count.
double error_of_other_answers(LengthExamples examples);
// The mean difference in length between two answers to the same request.
double resampling_spread(LengthExamples examples);

// Tokens reserved for outputs, against the outputs' lengths.
struct Provision {
  double covered = 0;       // share of outputs that fit
  double over_tokens = 0;   // mean surplus of the outputs that have one
  double under_tokens = 0;  // mean lack of the outputs that have one
  double over = 0;          // share of the outputs that have a surplus
  double kept = 0;          // mean of the tokens reserved
};
Provision provision_of(const std::vector<uint32_t>& kept, LengthExamples examples);

// The whole study as text: the first kTrainingShare of the examples is for training, the others are the test.
inline constexpr double kTrainingShare = 0.8;
std::string predictor_report(LengthExamples examples, uint32_t limit);

}  // namespace kvasir
