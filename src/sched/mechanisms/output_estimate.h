// How much output to keep room for: a prediction, padded so that it suffices with a stated confidence.
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
// The quantile takes the c-quantile of the residuals on the side where the truth is believed to lie, so that
// a share c of the requests on either side has no more than the estimate. In the paper Equation 3 is added
// where the truth lies beyond the prediction, and subtracted where it lies below: then the room suffices for
// the second kind with a probability of 1 - c at the most.
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
};

struct PaddingOptions {
  Padding padding = Padding::kQuantile;
  double share = 0.1;  // kShare's; also where nothing has finished that was predicted alike
  uint32_t least = 8;  // the least estimate, and what a request is expected to need beyond its estimate
};

// Equation 3, capped at the range, beyond which it says nothing. REQUIRES: confidence in [0, 1)
double hoeffding_padding(const LengthClass& alike, double confidence);

// For all the sequences of a view: what is added to a prediction depends on its class and side alone. Does
// not refer to the view afterwards.
class OutputEstimate {
 public:
  OutputEstimate(const View& view, double confidence, const PaddingOptions& options);

  // Tokens of output for which to keep room, in all; of a sequence without a prediction, those that it has
  // and PaddingOptions::least.
  uint32_t output(const SeqView& seq) const;
  // Likewise from now on; at least one.
  uint32_t rest(const SeqView& seq) const;

 private:
  double padded(const LengthPrediction& predicted) const;

  PaddingOptions options_;
  // Tokens that are added, by class, and then for a truth that lies below the point, anywhere, or beyond it.
  // None where too few requests have finished.
  std::vector<std::optional<std::array<double, 3>>> padding_;
};

// The same for one sequence.
uint32_t estimated_output(const View& view, const SeqView& seq, double confidence,
                          const PaddingOptions& options);
uint32_t estimated_rest(const View& view, const SeqView& seq, double confidence,
                        const PaddingOptions& options);

}  // namespace kvasir
