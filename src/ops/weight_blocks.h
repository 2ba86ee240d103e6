// GGUF's blocks of quantised weights, a group of 32 values at a time.
//
// Pure functions.
#pragma once

#include <cstdint>

#include "ops/numerics.h"

namespace kvasir::ops {

struct WeightGroup {
  uint8_t codes[32] = {};       // as WeightTraits has them
  uint16_t d = 0;               // bits of the block's scale, f16 or bf16 as WeightTraits says
  uint16_t min = 0;             // and of its minimum
  uint8_t scale_bytes[2] = {};  // the group's, as packed_matrix.h says
};

// Group `index` of the block. REQUIRES: is_quantized(type), 0 <= index < block_values / 32
WeightGroup read_group(WeightType type, const uint8_t* block, int64_t index);

// The 32 values of a group, exactly those of dequantize_row.
void dequantize_group(WeightType type, const WeightGroup& group, float* out);

}  // namespace kvasir::ops
