// What the two sides of lent memory agree on: the cells' layout and the model's heads. The numerics id, which
// peers compare before they lend, covers all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "contract/geometry.h"
#include "ops/cpu/kernels.h"
#include "ops/kv_layout.h"
#include "ops/leaf_attention.h"
#include "ops/leaf_run.h"

namespace kvasir {

struct MemoryShape {
  CacheGeometry geometry;
  // One layer of a cell; its kv_plane_bytes() is geometry.layer_plane_bytes().
  ops::KvShape kv;
  int64_t queries_per_kv = 1;

  int64_t q_dim() const { return kv.kv_heads * queries_per_kv * kv.head_dim; }
  uint32_t blocks_per_leaf() const { return static_cast<uint32_t>(ops::kLeafTokens) / geometry.block_tokens; }
  uint64_t piece_bytes() const { return geometry.piece_bytes(Form::kKv); }
  // One layer of a leaf.
  uint64_t leaf_bytes() const { return blocks_per_leaf() * piece_bytes(); }
  // Floats of a partial record of one row and KV head.
  int64_t record_floats() const { return ops::partial_floats(queries_per_kv, kv.head_dim); }
  uint64_t query_bytes(uint64_t rows) const { return rows * static_cast<uint64_t>(q_dim()) * sizeof(float); }
  // An attention over leaves of these cells; q: [rows][q_dim()].
  ops::LeafQuery leaf_query(uint32_t layer, int64_t rows, std::span<const ops::LeafRun> runs,
                            std::span<const std::byte* const> cells, const float* q) const {
    return {kv, queries_per_kv, runs, cells, layer * piece_bytes(), rows, q};
  }
  // Of all KV heads.
  uint64_t partial_bytes(uint64_t rows, uint64_t peaks) const {
    return rows * peaks * static_cast<uint64_t>(kv.kv_heads * record_floats()) * sizeof(float);
  }
};

using ops::for_each_subtree;
using ops::LeafRun;
using ops::subtrees_of;

}  // namespace kvasir
