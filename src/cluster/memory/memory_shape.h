// What the two sides of lent memory agree on: the cells' layout and the model's heads. The numerics id, which
// peers compare before they lend, covers all of it.
#pragma once

#include <bit>
#include <cstdint>

#include "contract/geometry.h"
#include "ops/cpu/kernels.h"
#include "ops/kv_layout.h"

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
  // Of all KV heads.
  uint64_t partial_bytes(uint64_t rows, uint64_t peaks) const {
    return rows * peaks * static_cast<uint64_t>(kv.kv_heads * record_floats()) * sizeof(float);
  }
};

// A run of leaves, [first, end), not empty.
struct LeafRun {
  uint32_t first = 0;
  uint32_t end = 0;
  uint32_t leaves() const { return end - first; }
  friend bool operator==(const LeafRun&, const LeafRun&) = default;
};

// The maximal aligned subtrees of a run, left to right: those that ops::AttentionTree holds after the run's
// leaves. visit(level, first leaf)
template <typename Visit>
void for_each_subtree(LeafRun run, Visit visit) {
  uint64_t at = run.first;
  while (at < run.end) {
    const int aligned = at == 0 ? 63 : std::countr_zero(at);
    const int fitting = std::bit_width(run.end - at) - 1;
    const int level = aligned < fitting ? aligned : fitting;
    visit(level, static_cast<uint32_t>(at));
    at += uint64_t{1} << level;
  }
}

inline uint32_t subtrees_of(LeafRun run) {
  uint32_t count = 0;
  for_each_subtree(run, [&](int, uint32_t) { ++count; });
  return count;
}

}  // namespace kvasir
