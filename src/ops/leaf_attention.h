// Attention over runs of whole leaves, where every row sees every position. An instance computes it for a
// query of another instance over the K and V that it holds, and for K and V fetched from another instance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "ops/cpu/kernels.h"
#include "ops/kv_layout.h"
#include "ops/leaf_run.h"

namespace kvasir::ops {

struct LeafQuery {
  KvShape kv;                  // of one layer of a block: layers = 1
  int64_t queries_per_kv = 1;  // query heads that share a KV head
  std::span<const LeafRun> runs;
  // The memory of each block of the runs' leaves, in their order: K of the layer at layer_offset bytes, V
  // right behind.
  std::span<const std::byte* const> cells;
  size_t layer_offset = 0;
  // Queries, rotated and scaled: [rows][kv_heads * queries_per_kv][head_dim]
  int64_t rows = 0;
  const float* q = nullptr;
};

// The subtrees of all runs: the records of one row and KV head.
uint32_t subtrees_of(std::span<const LeafRun> runs);

// out: [rows][kv_heads][subtrees_of(runs)] records of partial_floats(queries_per_kv, head_dim), as they are
// in memory. The bits are those that these leaves get in the pass over a whole history. Between any two
// leaves `go_on` is called; if it returns false, the call ends and returns false. Flushes subnormals to zero
// itself. Thread-safe; allocates. REQUIRES: room for all records.
bool attend_leaves(const Kernels& kernels, const LeafQuery& query, std::span<std::byte> out,
                   const std::function<bool()>& go_on);

}  // namespace kvasir::ops
