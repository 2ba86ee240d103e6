// Where K and V lie in a frame.
//
// A frame is one plane (K or V) of B tokens x F consecutive layers, [layer in group][kv head], and inside B /
// 16 runs of 16 tokens, each contiguous:
//   K  [head_dim][16]   a score kernel takes 16 positions at a time, one lane each
//   V  [16][head_dim]   an output kernel takes one position at a time, lanes along head_dim
// and for kQ8_0, whose elements are int8, 16 scales (f16) after them. A run of K is as large as one of V, so
// one offset serves both. Rows get there by Kernels::write_kv. Pure functions.
//
// Where V is a part of K (value_dim), there is one plane, of rows: [16][head_dim], as V's is. A score kernel
// takes 16 queries at a time, one lane each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/numerics.h"

namespace kvasir::ops {

struct KvShape {
  int64_t layers = 0;        // layers in this frame's group
  int64_t kv_heads = 0;      // of one layer
  int64_t head_dim = 0;      // a multiple of 16
  int64_t block_tokens = 0;  // B: a multiple of 16 that divides 256
  KvType type = KvType::kBf16;
  // Above 0, a multiple of 16, at most head_dim: one plane, where a row of K, of
  // at most kMostLatentRow values, begins with so many of V.
  int64_t value_dim = 0;
};

// True if head_dim and block_tokens obey the rules above and all counts are positive.
bool is_valid(const KvShape& shape);

// Bytes of one plane (K or V; both are equal).
size_t kv_plane_bytes(const KvShape& shape);
// Bytes from the plane's start to the tile of (layer in group, kv head), in K and V alike; a tile has B
// tokens.
size_t kv_tile_offset(const KvShape& shape, int64_t layer, int64_t kv_head);
// Bytes of a run of 16 tokens.
size_t kv_run_bytes(const KvShape& shape);

}  // namespace kvasir::ops
