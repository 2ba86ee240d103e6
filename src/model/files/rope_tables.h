// The table of cosines and sines of a model's RoPE.
#pragma once

#include <cstdint>

#include "model/architectures/model_spec.h"
#include "ops/rope_table.h"

namespace kvasir {

// max_positions: the longest sequence that will be run, in tokens; LongRoPE chooses its divisors by it.
ops::RopeTable rope_table(const Rope& rope, uint32_t max_positions);

}  // namespace kvasir
