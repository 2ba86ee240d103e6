// Frames of K and V: sizes and offsets.
#include "ops/kv_layout.h"

namespace kvasir::ops {

bool is_valid(const KvShape& shape) {
  return shape.layers > 0 && shape.kv_heads > 0 && shape.head_dim > 0 && shape.head_dim % kLanes == 0 &&
         shape.value_dim >= 0 && shape.value_dim % kLanes == 0 && shape.value_dim <= shape.head_dim &&
         (shape.value_dim == 0 || shape.head_dim <= kMostLatentRow) && shape.block_tokens > 0 &&
         shape.block_tokens % kLanes == 0 && kLeafTokens % shape.block_tokens == 0;
}

size_t kv_plane_bytes(const KvShape& shape) {
  return kv_tile_offset(shape, shape.layers, 0);
}

size_t kv_tile_offset(const KvShape& shape, int64_t layer, int64_t kv_head) {
  const int64_t rows = (layer * shape.kv_heads + kv_head) * shape.block_tokens;
  return static_cast<size_t>(rows * kv_row_bytes(shape.type, shape.head_dim));
}

size_t kv_run_bytes(const KvShape& shape) {
  return static_cast<size_t>(kLanes * kv_row_bytes(shape.type, shape.head_dim));
}

}  // namespace kvasir::ops
