// The options of a cache: its grid, and the memory of its tiers.
#pragma once

#include <cstdint>
#include <string>

#include "cache/blocks/block_map.h"
#include "contract/geometry.h"
#include "contract/ids.h"

namespace kvasir {

struct CacheOptions {
  CacheGeometry geometry;
  uint64_t device_bytes = 0;  // of cells on the device tier
  uint64_t host_bytes = 0;    // of the host tier; 0: there is none
  uint64_t disk_bytes = 0;    // of the disk tier; 0: there is none
  // The most that may be borrowed from peers. It follows the host tier's own memory.
  uint64_t borrowed_bytes = 0;
  // Cells of peers with cached blocks that are attended where they lie, at once; 0: none are. They follow
  // what may be borrowed, and belong to the host tier only while they are there (KvCache::attend_at_peers()).
  uint32_t attended_cells = 0;
  // Cells of peers from which prefixes are copied, at once; 0: none are. They follow those,
  // but are no memory of the tier.
  uint32_t prefix_cells = 0;
  // The stage ring, in the device's memory after its frames; 0: there is none.
  uint64_t stage_bytes = 0;
  bool prefix_caching = true;
  bool tells_events = false;  // see KvCache::take_events()
  std::string numerics_id;    // part of every block's hash

  // The number of blocks that fit in the stage ring, one layer of each.
  uint32_t stage_blocks() const {
    return static_cast<uint32_t>(stage_bytes / geometry.largest_piece_bytes());
  }
  uint64_t tier_bytes(Tier tier) const {
    return tier == Tier::kDevice ? device_bytes
                                 : (tier == Tier::kHost ? host_and_borrowed_bytes() : disk_bytes);
  }
  // The total cells of KV of a tier, without those that are attended at peers.
  uint32_t cells(Tier tier) const {
    const uint32_t all = TierShape::of(geometry, tier, tier_bytes(tier)).cells(Form::kKv);
    return tier == Tier::kHost ? all - attended_cells : all;
  }
  uint64_t host_and_borrowed_bytes() const {
    return has_peers_cells() ? borrowed_begin() + held_at_peers_bytes() : host_bytes;
  }
  Tier slower_tier() const { return host_bytes + borrowed_bytes > 0 ? Tier::kHost : Tier::kDisk; }
  // Whether cells of the host tier may lie at peers, and the bytes of all of those.
  bool has_peers_cells() const { return held_at_peers_bytes() > 0; }
  uint64_t held_at_peers_bytes() const { return borrowed_bytes + attended_cells * geometry.kv_cell_bytes(); }
  // The host tier's own cells, and the byte of the tier at which those of peers begin. A tier with cells of
  // peers holds KV only, so a cell is a slab.
  uint32_t own_host_cells() const { return static_cast<uint32_t>(host_bytes / geometry.kv_cell_bytes()); }
  uint32_t borrowable_cells() const {
    return static_cast<uint32_t>(borrowed_bytes / geometry.kv_cell_bytes());
  }
  uint64_t borrowed_begin() const { return own_host_cells() * geometry.kv_cell_bytes(); }
  // The byte of the tier at which the cells of peers begin: those that are borrowed, those that are attended,
  // and those from which prefixes are copied.
  uint64_t peers_begin() const {
    const uint64_t cell = geometry.kv_cell_bytes();
    return has_peers_cells() ? borrowed_begin() : (host_bytes + cell - 1) / cell * cell;
  }
  uint64_t peers_bytes() const { return held_at_peers_bytes() + prefix_cells * geometry.kv_cell_bytes(); }
  // The number of the first cell from which prefixes are copied.
  uint32_t first_shown_cell() const { return borrowable_cells() + attended_cells; }
};

}  // namespace kvasir
