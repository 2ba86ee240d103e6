// Plain views that the CPU kernels take: pointers and shapes, no ownership, no functions.
//
// Files compiled for a wider instruction set include this header; an inline function here could be emitted by
// them and then picked by the linker for every caller. Hence: data only.
#pragma once

#include <cstdint>

#include "ops/numerics.h"

namespace kvasir::ops {

// Rows of activations in int8. A row's element i is about q[i] * scales[i / 32].
struct QuantizedRows {
  int8_t* q = nullptr;      // [rows][k], -127..127
  float* scales = nullptr;  // [rows][k / 32], each an f16 exactly
  int16_t* sums =
      nullptr;  // [rows][k / 32][2], exact sums of q over each group and over its second half, negated
  float* moments = nullptr;  // [rows][k / 32], scale * sum of q: what a weight's minimum multiplies
  int64_t rows = 0;
  int64_t k = 0;  // a multiple of 32
};

// Rows of activations rounded to bf16, read in pairs: after an odd k comes a +0.
struct Bf16Rows {
  uint16_t* x = nullptr;  // [rows][stride]
  int64_t rows = 0;
  int64_t k = 0;
  int64_t stride = 0;  // elements; see row_stride_bytes
};

// A weight matrix of n output columns by k, in the layout of packed_matrix.h.
struct PackedMatrix {
  const uint8_t* data = nullptr;  // aligned to 64 bytes
  WeightType type = WeightType::kF32;
  int64_t n = 0;  // true output columns; the packed form is padded to a multiple of 32
  int64_t k = 0;
};

// One leaf of attention (256 aligned positions, the last leaf fewer) for one KV head and several query rows.
struct AttentionLeafArgs {
  const float* q = nullptr;  // [rows][heads][head_dim], already times 1/sqrt(head_dim)
  int64_t q_stride = 0;      // floats from one query row to the next
  int64_t rows = 0;
  int64_t heads = 0;               // query heads that share this KV head
  int64_t head_dim = 0;            // a multiple of 16
  int64_t value_dim = 0;           // as in KvShape: then v_tiles are k_tiles, and records have so many values
  const int32_t* valid = nullptr;  // [rows], 1..256: positions of the leaf that the row attends to
  // [rows], below valid: the row attends to positions [first, valid) of the leaf. Null: from the first on.
  const int32_t* first = nullptr;
  float score_cap = 0;  // a score s becomes cap * tanh(s / cap); 0: it stays
  // Tiles of this layer and KV head, one per block of the leaf, as kv_layout.h says.
  // Only those of positions [min first, max valid) are read.
  const void* const* k_tiles = nullptr;
  const void* const* v_tiles = nullptr;
  // K tiles of the leaf that the caller takes next: fetched into the caches meanwhile. It changes no result.
  const void* const* next_k_tiles = nullptr;
  int64_t next_tiles = 0;
  int64_t block_tokens = 0;  // B
  KvType type = KvType::kBf16;
  float* out = nullptr;    // one partial record (partial_floats) per query row
  int64_t out_stride = 0;  // floats from one record to the next
};

// Sixteen channels of a causal convolution (Kernels::convolve).
struct ConvolutionArgs {
  float* x = nullptr;  // row 0, in place; `stride` floats from one row to the next
  int64_t stride = 0;
  int64_t rows = 0;
  const float* weights = nullptr;  // of the oldest tap, [16]; those of the next one are so far behind
  int64_t weights_stride = 0;
  int64_t taps = 0;
  float* history = nullptr;  // [taps - 1][16]: the inputs before row 0, oldest first; then before the next
};

// Values of one head under the gated delta rule (Kernels::delta_rule).
struct DeltaRuleArgs {
  const float *q = nullptr, *k = nullptr, *v = nullptr;  // row 0: [keys], [keys], [16 * units]
  int64_t stride = 0;                                    // floats from one row to the next, of all three
  const float *decay = nullptr, *beta = nullptr;         // row 0
  int64_t gate_stride = 0;
  int64_t rows = 0;
  int64_t keys = 0;
  int64_t units = 0;
  float* state = nullptr;  // [units][keys][16]
  float* out = nullptr;    // row 0: [16 * units]
  int64_t out_stride = 0;
};

}  // namespace kvasir::ops
