// Attention over whole leaves that lie in this instance's cells, for a query from elsewhere.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "cluster/memory/memory_shape.h"

namespace kvasir {

struct LentQuery {
  uint32_t layer = 0;  // in the cells' group
  uint32_t rows = 0;
  std::span<const LeafRun> runs;
  // Of the runs' leaves, block by block.
  std::span<const std::byte* const> cells;
  const float* q = nullptr;  // [rows][q_dim]
};

// The subtrees of all runs of a query: the records of one row and KV head.
uint32_t peaks_of(std::span<const LeafRun> runs);

// out: [rows][kv heads][peaks] records, as they are in memory. The bits are those that these leaves get at
// home. Between any two leaves `go_on` is asked; false ends it, and so does the call return. Thread-safe.
bool attend_lent(const MemoryShape& shape, const ops::Kernels& kernels, const LentQuery& query,
                 std::span<std::byte> out, const std::function<bool()>& go_on);

}  // namespace kvasir
