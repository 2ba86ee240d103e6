// The cells that all tiers have together.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvasir {

// The total capacity for one sequence that runs alone.
struct CellCapacity {
  uint32_t groups = 0;
  uint32_t device_cells = 0;
  uint32_t slower_cells = 0;    // of the slower tier, without borrowed ones
  uint32_t stage_blocks = 0;    // capacity of the stage ring, in blocks of one layer
  uint32_t borrowed_cells = 0;  // of peers, in addition
  uint32_t leaf_blocks = 0;     // blocks per leaf of attention; used where cells are borrowed
  bool may_borrow = false;      // also while there is nothing to borrow
  // Of the groups, those of which a sequence needs no more than so many blocks (CacheGeometry::most_cells).
  uint32_t windowed_groups = 0;
  uint32_t window_blocks = 0;

  // Cells of a sequence of so many blocks, if all are on the device.
  uint64_t most_cells(uint32_t blocks) const {
    return uint64_t{blocks} * (groups - windowed_groups) +
           uint64_t{std::min(blocks, window_blocks)} * windowed_groups;
  }
  bool borrows() const { return may_borrow || borrowed_cells > 0; }
  uint64_t slower() const { return uint64_t{slower_cells} + borrowed_cells; }
  // Blocks that pass through the ring, for a sequence with its full blocks on the slower tier. Peers attend
  // to whole leaves that they hold; leaves only partly at peers pass through the ring.
  uint64_t passing(uint32_t blocks) const {
    if (borrowed_cells == 0) return blocks;
    return std::min<uint64_t>(blocks, uint64_t{slower_cells} * leaf_blocks + 2 * leaf_blocks);
  }
};

}  // namespace kvasir
