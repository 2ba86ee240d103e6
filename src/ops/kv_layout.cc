// Frames of K and V: sizes, offsets, and the rounding store of new rows.
#include "ops/kv_layout.h"

#include "base/check.h"

namespace kvasir::ops {
namespace {

void store(KvType type, void* base, int64_t index, float value) {
  if (type == KvType::kF32) {
    static_cast<float*>(base)[index] = value;
  } else {
    static_cast<uint16_t*>(base)[index] = f32_to_bf16(value);
  }
}

}  // namespace

bool is_valid(const KvShape& shape) {
  return shape.layers > 0 && shape.kv_heads > 0 && shape.head_dim > 0 && shape.head_dim % kLanes == 0 &&
         shape.block_tokens > 0 && shape.block_tokens % kLanes == 0 && kLeafTokens % shape.block_tokens == 0;
}

size_t kv_plane_bytes(const KvShape& shape) {
  return kv_tile_offset(shape, shape.layers, 0);
}

size_t kv_tile_offset(const KvShape& shape, int64_t layer, int64_t kv_head) {
  const int64_t elements = (layer * shape.kv_heads + kv_head) * shape.block_tokens * shape.head_dim;
  return static_cast<size_t>(elements * kv_element_bytes(shape.type));
}

void write_kv(const KvShape& shape, int64_t layer, int64_t token, const float* k_row, const float* v_row,
              void* k_plane, void* v_plane) {
  KV_CHECK(is_valid(shape), "layers={} kv_heads={} head_dim={} block={}", shape.layers, shape.kv_heads,
           shape.head_dim, shape.block_tokens);
  KV_CHECK(layer >= 0 && layer < shape.layers && token >= 0 && token < shape.block_tokens,
           "layer={} of {}, token={} of {}", layer, shape.layers, token, shape.block_tokens);
  const int64_t dim = shape.head_dim;
  for (int64_t head = 0; head < shape.kv_heads; ++head) {
    const size_t tile = kv_tile_offset(shape, layer, head);
    if (k_plane != nullptr) {
      void* base = static_cast<uint8_t*>(k_plane) + tile;
      const int64_t first = token / kLanes * dim * kLanes + token % kLanes;
      for (int64_t i = 0; i < dim; ++i) store(shape.type, base, first + i * kLanes, k_row[head * dim + i]);
    }
    if (v_plane != nullptr) {
      void* base = static_cast<uint8_t*>(v_plane) + tile;
      for (int64_t i = 0; i < dim; ++i) store(shape.type, base, token * dim + i, v_row[head * dim + i]);
    }
  }
}

}  // namespace kvasir::ops
