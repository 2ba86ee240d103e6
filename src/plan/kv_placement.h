// The tiers that hold the K and V of a sequence: the device, or, if the sequence can become larger than the
// device tier, mostly the slower tier (the host with the cells borrowed from peers, or the disk if there is
// neither). Every check whether a request can ever fit uses this rule.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/units.h"
#include "contract/cell_capacity.h"
#include "contract/layer_set.h"
#include "contract/view.h"

namespace kvasir {

struct KvPlacement {
  bool fits = false;
  // Its first `away_blocks` blocks, once they are full, go to the slower tier, in all layer groups but
  // `kept_groups`, and are staged in every step or attended at peers.
  bool streams = false;
  uint32_t kept_groups = 0;
  uint32_t away_blocks = 0;
  // Of those: the blocks for which the device has no room in any case. The others stay while the slower tier
  // has none.
  uint32_t fewest_away = 0;

  // For a sequence of `blocks` blocks at its maximum length.
  static KvPlacement of(uint32_t blocks, const CellCapacity& c) {
    if (c.most_cells(blocks) <= c.device_cells) return {true, false, c.groups, 0};
    // The ring must pass its history and a block that is being written. The device must have room for the
    // block in which it ends and the one in which a chunk begins.
    if (c.stage_blocks < c.passing(blocks) || c.slower() == 0 || c.device_cells < 2 * c.groups) return {};
    // What may be borrowed comes and goes, and the rule may not change with it: promises were given by it.
    return c.borrows() ? by_blocks(blocks, c) : by_groups(blocks, c);
  }

  // Cells of the device that it needs once it has so many blocks, besides the two in which a chunk begins and
  // ends.
  uint32_t device_cells(uint32_t blocks, uint32_t groups) const {
    if (!streams) return blocks * groups;
    const uint32_t away = std::min(blocks, away_blocks);
    return away * kept_groups + (blocks - away) * groups;
  }

  // Length in blocks of the longest sequence that fits; kMostBlocks where none is too long.
  static constexpr uint32_t kMostBlocks = 1 << 20;
  static uint32_t longest(const CellCapacity& c) {
    if (c.groups == 0) return 0;
    uint32_t fits = c.device_cells / c.groups;
    const uint32_t lasting = std::max(c.groups - c.windowed_groups, 1u);
    uint32_t end = static_cast<uint32_t>((c.device_cells + c.slower()) / lasting) + 1;
    if (c.windowed_groups == c.groups && c.most_cells(kMostBlocks) <= c.device_cells) return kMostBlocks;
    while (end - fits > 1) {
      const uint32_t middle = fits + (end - fits) / 2;
      (of(middle, c).fits ? fits : end) = middle;
    }
    return fits;
  }

 private:
  // Cells at peers cost network traffic and peers' memory, so the device is filled first. The oldest blocks
  // go, in every layer: peers attend to them while the device attends to the others. They end with a leaf of
  // attention if peers lend that much; a leaf that is partly here is staged in every step.
  static KvPlacement by_blocks(uint32_t blocks, const CellCapacity& c) {
    const auto fits = [&](uint32_t away) { return uint64_t{away} * c.groups <= c.slower(); };
    const uint32_t fewest = blocks + 2 - c.device_cells / c.groups;
    if (!fits(fewest)) return {};
    const uint32_t leaves = std::min(blocks, round_up(fewest, c.leaf_blocks));
    return {true, true, 0, fits(leaves) ? leaves : fewest, fewest};
  }

  // As many layer groups stay as the slower tier cannot take: a link that loads all of a layer again in every
  // step has less to load.
  static KvPlacement by_groups(uint32_t blocks, const CellCapacity& c) {
    const uint64_t cells = uint64_t{blocks} * c.groups;
    const auto beyond =
        static_cast<uint32_t>((cells - std::min<uint64_t>(cells, c.slower()) + blocks - 1) / blocks);
    const bool fits = beyond < c.groups && uint64_t{blocks} * beyond + 2 * c.groups <= c.device_cells;
    return fits ? KvPlacement{true, true, beyond, blocks, blocks} : KvPlacement{};
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
