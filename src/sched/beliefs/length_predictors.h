// Predictors of output lengths, by name.
//
//   oracle         what the client says (PromptFeatures::output_tokens_hint); without that, as constant:128
//   constant:N     N tokens, whatever is asked
//   online         learns from each request that ends (sched/beliefs/online_predictor.h)
//
// All of them keep the residuals of what has finished, by class of the point (LengthClasses).
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "contract/length_predictor.h"

namespace kvasir {

// kNotFound names what there is; kInvalidArgument: N is not 1 to 1,000,000.
Result<std::unique_ptr<LengthPredictor>> make_length_predictor(std::string_view spec);

}  // namespace kvasir
