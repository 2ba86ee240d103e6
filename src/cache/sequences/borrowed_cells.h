// Cells of KV that peers have lent: slabs of the host tier, one behind the other after the tier's own memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/blocks/block_map.h"
#include "cache/blocks/place.h"
#include "cache/sequences/cache_options.h"

namespace kvasir {

// Cells are numbered from 0. A cell that was not added, or is gone, is given to no block. Used by one thread;
// the map and the options outlive it.
class BorrowedCells {
 public:
  BorrowedCells(const CacheOptions& options, BlockMap& map);

  // Peers lend these. REQUIRES: they are not there.
  void add(std::span<const uint32_t> cells);
  // A peer wants them back, or we give them back: nothing new is put there, and each is gone as soon as no
  // sequence needs what lies in it. Those that are closed or gone already are ignored. Returns how many were
  // not.
  uint32_t close(std::span<const uint32_t> cells);
  // Closed cells may stay: those that are not gone yet are as before close().
  void keep(std::span<const uint32_t> cells);
  // Closed cells that are gone since the last call.
  std::vector<uint32_t> take_departed();

  // Cells that are there, without the closed ones; and the closed ones that are not gone.
  uint32_t open() const { return open_; }
  uint32_t closed() const { return closed_; }
  // A copy lies in a cell, in a closed one; `at`: where it is in its tier's memory.
  bool contains(Place place, uint64_t at) const {
    return place.tier == Tier::kHost && options_.borrowed_bytes > 0 && at >= options_.borrowed_begin();
  }
  bool contains_closed(Place place, uint64_t at) const;
  // Up to so many open cells in which nothing lies, the last ones first; and those in which only copies lie
  // that no sequence needs.
  std::vector<uint32_t> empty(uint32_t most) const;
  std::vector<uint32_t> idle() const;
  // Where a cell lies in the host tier's memory.
  uint64_t address(uint32_t cell) const {
    return options_.borrowed_begin() + cell * options_.geometry.kv_cell_bytes();
  }

 private:
  uint32_t slab_of(uint32_t cell) const { return options_.own_host_cells() + cell; }

  const CacheOptions& options_;
  BlockMap& map_;
  uint32_t open_ = 0;
  uint32_t closed_ = 0;
};

}  // namespace kvasir
