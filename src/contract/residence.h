// Where the K and V of a sequence can live: on the device, or, if it can become larger than that, mostly on
// the slower tier (the host, with what is borrowed from peers; the disk where there is neither). One rule for
// all that ask whether a request can ever fit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "contract/layer_set.h"

namespace kvasir {

// What there is in all, for one sequence that is alone.
struct CellCapacity {
  uint32_t groups = 0;
  uint32_t device_cells = 0;
  uint32_t slower_cells = 0;    // of the slower tier, borrowed ones left out
  uint32_t stage_blocks = 0;    // of which the stage ring holds a layer
  uint32_t borrowed_cells = 0;  // of peers, beside those
  uint32_t leaf_blocks = 0;     // blocks of a leaf of attention; of use where something is borrowed

  uint64_t slower() const { return uint64_t{slower_cells} + borrowed_cells; }
  // Blocks of a sequence whose full blocks are on the slower tier that the ring has to pass: whole leaves at
  // peers are attended there, and those of which some blocks are at peers and some are not pass it.
  uint64_t passing(uint32_t blocks) const {
    if (borrowed_cells == 0) return blocks;
    return std::min<uint64_t>(blocks, uint64_t{slower_cells} * leaf_blocks + 2 * leaf_blocks);
  }
};

struct Residence {
  bool fits = false;
  // Its full blocks go to the slower tier, but for those of `kept_groups`, and are staged in every step.
  bool streams = false;
  uint32_t kept_groups = 0;

  // For a sequence of so many blocks at its greatest length.
  static Residence of(uint32_t blocks, const CellCapacity& c) {
    const uint64_t cells = uint64_t{blocks} * c.groups;
    if (cells <= c.device_cells) return {true, false, c.groups};
    // The ring passes its history and, beside that, a block that is being written. The device has room for
    // the block in which it ends and the one in which a chunk of it begins.
    if (c.stage_blocks < c.passing(blocks) || c.slower() == 0) return {};
    const auto beyond =
        static_cast<uint32_t>((cells - std::min<uint64_t>(cells, c.slower()) + blocks - 1) / blocks);
    const bool fits = beyond < c.groups && uint64_t{blocks} * beyond + 2 * c.groups <= c.device_cells;
    return {fits, fits, fits ? std::max(beyond, kept_from_peers(blocks, c)) : 0};
  }

  // What lies at peers costs them and the network in every step: half of the device is filled first.
  static uint32_t kept_from_peers(uint32_t blocks, const CellCapacity& c) {
    const uint32_t room = c.device_cells / 2 - std::min(c.device_cells / 2, 2 * c.groups);
    return c.borrowed_cells == 0 ? 0 : std::min(room / blocks, c.groups - 1);
  }

  // Blocks of the longest sequence that fits.
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

// `count` of `groups` layer groups, spread evenly.
inline LayerSet spread_groups(uint32_t count, uint32_t groups) {
  LayerSet set;
  for (uint32_t i = 0; i < count; ++i) set.add(static_cast<uint32_t>(uint64_t{i} * groups / count));
  return set;
}

}  // namespace kvasir
