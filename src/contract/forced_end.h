// What a forced end does to a token that was drawn without logits: for executors that compute nothing.
#pragma once

#include <cstdint>

#include "contract/step.h"

namespace kvasir {

// The token for `position` (the index that it will have in its sequence), where `drawn` would come if nothing
// were forced: the end token at its place, and before it never: the next id of the vocabulary stands in for
// it. REQUIRES: vocab_size > 1
inline Token with_forced_end(const SamplingParams& params, uint32_t position, Token drawn,
                             int32_t vocab_size) {
  if (params.forced_end == 0 || position > params.forced_end) return drawn;
  if (position == params.forced_end) return params.end_token;
  return drawn == params.end_token ? static_cast<Token>((drawn + 1) % vocab_size) : drawn;
}

}  // namespace kvasir
