// Cells of KV at peers: slabs of the host tier, one behind the other after the tier's own memory. First those
// that peers lend, then those with cached blocks of peers, which are read and never written.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/blocks/block_map.h"
#include "cache/blocks/place.h"
#include "cache/sequences/cache_options.h"

namespace kvasir {

// Cells are numbered from 0. Only cells that were added and are not gone are allocated. Used by one thread;
// the map and the options outlive it.
class BorrowedCells {
 public:
  BorrowedCells(const CacheOptions& options, BlockMap& map);

  // Adds cells that peers have lent. REQUIRES: they are not present.
  void add(std::span<const uint32_t> cells);
  // Adds cells with blocks of peers, and, once the blocks are in the map, has nothing else allocated there:
  // each is gone as soon as nothing needs its copy. REQUIRES: attended(cell) for each
  void open_attended(std::span<const uint32_t> cells);
  void close_attended(std::span<const uint32_t> cells);
  bool attended(uint32_t cell) const { return cell >= options_.borrowable_cells(); }
  // Those that are not gone.
  uint32_t attended_cells() const { return attended_; }
  // Closes cells that go back to peers: nothing more is allocated there, and each is gone as soon as no
  // sequence needs its copy. Cells that are closed or gone already are ignored. Returns the number of the
  // others.
  uint32_t close(std::span<const uint32_t> cells);
  // Undoes close() for cells that are not gone yet.
  void keep(std::span<const uint32_t> cells);
  // Closed cells that have gone since the last call.
  std::vector<uint32_t> take_departed();

  // Open cells; and closed ones that are not gone.
  uint32_t open() const { return open_; }
  uint32_t closed() const { return closed_; }
  // Whether a copy lies in a cell at a peer, or in a closed borrowed one. `at`: its offset in the tier's
  // memory.
  bool contains(Place place, uint64_t at) const {
    return place.tier == Tier::kHost && options_.has_peers_cells() && at >= options_.borrowed_begin();
  }
  bool contains_closed(Place place, uint64_t at) const;
  // Up to `most` open cells that are empty, the last ones first; and those with only copies that no sequence
  // needs.
  std::vector<uint32_t> empty(uint32_t most) const;
  std::vector<uint32_t> idle() const;
  // The offset of a cell in the host tier's memory.
  uint64_t address(uint32_t cell) const {
    return options_.borrowed_begin() + cell * options_.geometry.kv_cell_bytes();
  }
  // The cell at such an offset.
  uint32_t cell_at(uint64_t address) const {
    return static_cast<uint32_t>((address - options_.borrowed_begin()) / options_.geometry.kv_cell_bytes());
  }

 private:
  uint32_t slab_of(uint32_t cell) const { return options_.own_host_cells() + cell; }

  const CacheOptions& options_;
  BlockMap& map_;
  uint32_t open_ = 0;
  uint32_t closed_ = 0;
  uint32_t attended_ = 0;
};

}  // namespace kvasir
