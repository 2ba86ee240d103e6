// Where the K and V of a sequence can live: on the device, or, if it can become larger than that, mostly on
// the slower tier (the host; the disk where there is no host). One rule for all that ask whether a request
// can ever fit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "contract/layer_set.h"

namespace kvasir {

// What there is in all, for one sequence that is alone.
struct CellCapacity {
  uint32_t groups = 0;
  uint32_t device_cells = 0;
  uint32_t slower_cells = 0;
  uint32_t stage_blocks = 0;  // of which the stage ring holds a layer
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
    if (c.stage_blocks < blocks || c.slower_cells == 0) return {};
    const auto beyond =
        static_cast<uint32_t>((cells - std::min<uint64_t>(cells, c.slower_cells) + blocks - 1) / blocks);
    const bool fits = beyond < c.groups && uint64_t{blocks} * beyond + 2 * c.groups <= c.device_cells;
    return {fits, fits, fits ? beyond : 0};
  }

  // Blocks of the longest sequence that fits.
  static uint32_t longest(const CellCapacity& c) {
    uint32_t fits = c.groups == 0 ? 0 : c.device_cells / c.groups;
    uint32_t end = std::max(fits, c.groups == 0 ? 0 : (c.device_cells + c.slower_cells) / c.groups) + 1;
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
