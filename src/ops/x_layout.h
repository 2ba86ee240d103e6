// Where X, the operand of a QKV product, lies in a copy.
//
// A piece is one layer of a block of B tokens, and its parts are arrays that products read as they stand:
//   kInt8  [B][k] int8, then [B][k / 32] scales (f16)
//   kBf16  [B][k rounded up to even] bf16, the last of an odd k +0
//   kF32   [B][k]
// Every size of it comes from x_row_bytes. Of int8 rows the rest is not kept: Kernels::complete_rows makes it
// again. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/views.h"
#include "ops/numerics.h"

namespace kvasir::ops {

// Bytes of a token in one layer, a multiple of 4; a piece has block_tokens times so many.
// REQUIRES: k > 0, and k % 32 == 0 for kInt8
int64_t x_row_bytes(ActivationType type, int64_t k);

// Views of a piece: rows are the tokens of the block. REQUIRES: piece aligned to 4 bytes
struct Int8XRows {
  int8_t* q;    // [B][k]
  uint16_t* d;  // [B][k / 32]
};
Int8XRows int8_x_rows(void* piece, int64_t block_tokens, int64_t k);
Bf16Rows bf16_x_rows(void* piece, int64_t block_tokens, int64_t k);
inline float* f32_x_rows(void* piece) {
  return static_cast<float*>(piece);
}

}  // namespace kvasir::ops
