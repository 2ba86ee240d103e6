// Predictors of output lengths, by name.
//
//   oracle         the client's hint (PromptFeatures::output_tokens_hint); without one, as constant:128
//   constant:N     always N tokens
//   laplace:N      as the oracle, with an error of Laplace(0, N): N is the mean of its absolute value. It is
//                  unbiased except for the lower bound of one token, and depends only on the hint and the
//                  prompt's tokens (their number, and up to 256 at each end). laplace:N:SHARE also tells on
//                  which side of the point the truth lies, rightly for that share of the requests, 0.5 to 1
//   bucket:N       as the oracle, rounded up to a multiple of N
//   inverted:N     N less what the oracle says, at least 1: it takes the longest outputs for the shortest
//   online         learns from each request that ends (sched/beliefs/online_predictor.h)
//   hidden         likewise, and from the served model's own hidden row (sched/beliefs/hidden_predictor.h)
//
// All of them keep the residuals of finished requests, by class of the point (LengthClasses).
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "contract/length_predictor.h"

namespace kvasir {

// kNotFound lists the predictors; kInvalidArgument: N is not 1 to 1,000,000, or SHARE is
// not 0.5 to 1.
Result<std::unique_ptr<LengthPredictor>> make_length_predictor(std::string_view spec);

}  // namespace kvasir
