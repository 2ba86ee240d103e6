// The tiers that hold the K and V of a sequence: the device, or, if the sequence can become larger than the
// device tier, mostly the slower tier (the host with the cells borrowed from peers, or the disk if there is
// neither). Every check whether a request can ever fit uses this rule.
#pragma once

#include <algorithm>
#include <cstdint>

#include "contract/cell_capacity.h"
#include "contract/layer_set.h"
#include "contract/view.h"

namespace kvasir {

struct KvPlacement {
  bool fits = false;
  // Its full blocks go to the slower tier, except in `kept_groups` layer groups, and are staged in every
  // step.
  bool streams = false;
  uint32_t kept_groups = 0;

  // For a sequence of `blocks` blocks at its maximum length.
  static KvPlacement of(uint32_t blocks, const CellCapacity& c) {
    const uint64_t cells = uint64_t{blocks} * c.groups;
    if (cells <= c.device_cells) return {true, false, c.groups};
    // The ring must pass its history and a block that is being written. The device must have room for the
    // block in which it ends and the one in which a chunk begins.
    if (c.stage_blocks < c.passing(blocks) || c.slower() == 0) return {};
    const auto beyond =
        static_cast<uint32_t>((cells - std::min<uint64_t>(cells, c.slower()) + blocks - 1) / blocks);
    const bool fits = beyond < c.groups && uint64_t{blocks} * beyond + 2 * c.groups <= c.device_cells;
    return {fits, fits, fits ? std::max(beyond, kept_from_peers(blocks, c)) : 0};
  }

  // Cells at peers cost network traffic and peers' time in every step, so half of the device is filled first.
  static uint32_t kept_from_peers(uint32_t blocks, const CellCapacity& c) {
    const uint32_t room = c.device_cells / 2 - std::min(c.device_cells / 2, 2 * c.groups);
    return c.borrowed_cells == 0 ? 0 : std::min(room / blocks, c.groups - 1);
  }

  // Length in blocks of the longest sequence that fits.
  static uint32_t longest(const CellCapacity& c) {
    uint32_t fits = c.groups == 0 ? 0 : c.device_cells / c.groups;
    uint32_t end =
        std::max(fits, c.groups == 0 ? 0 : static_cast<uint32_t>((c.device_cells + c.slower()) / c.groups)) +
        1;
    while (end - fits > 1) {
      const uint32_t middle = fits + (end - fits) / 2;
      (of(middle, c).fits ? fits : end) = middle;
    }
    return fits;
  }
};

// For a sequence at its maximum length.
inline KvPlacement kv_placement_of(const View& view, const SeqView& seq) {
  return KvPlacement::of(view.geometry.blocks_for(seq.max_total_tokens), view.capacity(seq.blocks > 0));
}

// `count` of `groups` layer groups, spread evenly.
inline LayerSet spread_groups(uint32_t count, uint32_t groups) {
  LayerSet set;
  for (uint32_t i = 0; i < count; ++i) set.add(static_cast<uint32_t>(uint64_t{i} * groups / count));
  return set;
}

}  // namespace kvasir
