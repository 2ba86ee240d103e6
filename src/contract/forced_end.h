// Applies a forced end to a token that was drawn without logits: for executors that compute nothing.
#pragma once

#include <cstdint>

#include "contract/step.h"

namespace kvasir {

// The token for `position` (its index in the sequence): the end token if its place is `position`, and `drawn`
// before. If `drawn` is itself the end token, the next id of the vocabulary replaces it. REQUIRES:
// vocab_size > 1
inline Token with_forced_end(const SamplingParams& params, uint32_t position, Token drawn,
                             int32_t vocab_size) {
  if (params.forced_end == 0 || position > params.forced_end) return drawn;
  if (position == params.forced_end) return params.end_token;
  return drawn == params.end_token ? static_cast<Token>((drawn + 1) % vocab_size) : drawn;
}

}  // namespace kvasir
