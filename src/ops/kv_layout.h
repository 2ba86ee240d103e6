// Where K and V lie in a frame, and how a token's rows get there.
//
// A frame is one plane (K or V) of B tokens x F consecutive layers, [layer in group][kv head], and inside:
//   K  [B / 16][head_dim][16]   a score kernel takes 16 positions at a time, one lane each
//   V  [B][head_dim]            an output kernel takes one position at a time, lanes along head_dim
// Pure functions; two threads may write different tokens or layers of one frame.
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
};

// True if head_dim and block_tokens obey the rules above and all counts are positive.
bool is_valid(const KvShape& shape);

// Bytes of one plane (K or V; both are equal).
size_t kv_plane_bytes(const KvShape& shape);
// Bytes from the plane's start to the tile of (layer in group, kv head), in K and V alike; a tile has B
// tokens.
size_t kv_tile_offset(const KvShape& shape, int64_t layer, int64_t kv_head);

// Rounds one token's K and V rows ([kv_heads][head_dim] f32, K after RoPE) to the cache type and stores them
// for one layer. token is the index in the block. Either plane may be null (then its row is not read).
// REQUIRES: is_valid(shape), 0 <= layer < layers, 0 <= token < block_tokens.
void write_kv(const KvShape& shape, int64_t layer, int64_t token, const float* k_row, const float* v_row,
              void* k_plane, void* v_plane);

}  // namespace kvasir::ops
