// The output length to reserve room for: a prediction, padded so that it suffices with a given confidence.
//
// Source: CacheOpt, Section 3.2. With residuals X - X^ of requests that were predicted alike
// (View::length_classes), and the direction in which the truth is believed to lie:
//
//   symbol    here                                unit
//   X^_i      LengthPrediction::output_tokens     tokens
//   c         `confidence`                        [0, 1): the share of requests for which it suffices
//   b - a     the residuals' 5 % to 95 % range    tokens
//   t_i       hoeffding_padding()                 tokens (Equation 3)
//   B         PaddingOptions::least               tokens
//
// kQuantile adds the c-quantile of the residuals on the side where the truth is expected, so that a share c
// of the requests on either side has no more than the estimate. The paper adds Equation 3 if the truth lies
// above the prediction, and subtracts it if the truth lies below: then the room suffices for the second kind
// with a probability of at most 1 - c.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "contract/length_predictor.h"
#include "contract/view.h"

namespace kvasir {

enum class Padding : uint8_t {
  kQuantile,   // of the residuals, at the confidence
  kHoeffding,  // Equation 3
  kShare,      // a fixed share of the prediction
  kTokens,     // so many tokens, as RLP adds them
};

struct PaddingOptions {
  Padding padding = Padding::kQuantile;
  double share = 0.1;     // of kShare; also used while no request of the class has finished
  uint32_t tokens = 100;  // of kTokens
  uint32_t least = 8;     // the least estimate, and the step by which an exceeded estimate grows
  // kQuantile: of the residuals of those only whose outputs are longer than that of the sequence is already,
  // so the estimate grows with it before it is exceeded.
  bool survival = false;
};

// Equation 3, capped at the range, beyond which it is meaningless. REQUIRES: confidence in [0, 1)
double hoeffding_padding(const LengthClass& alike, double confidence);

// Estimates for all the sequences of a view: the padding of a prediction depends on its class and side only.
// Does not refer to the view afterwards.
class OutputEstimate {
 public:
  OutputEstimate(const View& view, double confidence, const PaddingOptions& options);

  // The total output tokens to reserve room for; for a sequence without a prediction, its tokens so far and
  // PaddingOptions::least.
  uint32_t output(const SeqView& seq) const;
  // The remaining ones of these; at least one.
  uint32_t rest(const SeqView& seq) const;

 private:
  double padded(const SeqView& seq) const;

  PaddingOptions options_;
  double confidence_;
  std::vector<LengthClass> classes_;  // with `survival`
  // Tokens to add, by class, for a truth below the point, on either side, or above it. Empty if too few
  // requests have finished.
  std::vector<std::optional<std::array<double, 3>>> padding_;
};

}  // namespace kvasir
