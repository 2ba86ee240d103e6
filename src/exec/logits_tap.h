// Called with logits, beside the sampler.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "contract/ids.h"

namespace kvasir {

// Sees the logits of every row that samples: tests and evaluation only. `position` is that of the row's
// token.
using LogitsTap = std::function<void(SeqId seq, uint32_t position, std::span<const float> logits)>;

}  // namespace kvasir
