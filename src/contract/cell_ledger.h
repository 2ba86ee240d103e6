// The cells that a plan takes and gives on one tier, and the planes of the stage ring that its rows need,
// counted alike by whoever makes a plan and whoever checks it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "contract/interval.h"
#include "contract/view.h"

namespace kvasir {

// The order of the calls does not matter: what is left is a function of their sums, and a plan fits if
// available() is not negative at its end. A copy is cheap: try on a copy, then assign.
class CellLedger {
 public:
  CellLedger(const View& view, Tier tier)
      : left_(view.budget(tier).available_cells()),
        coming_(view.budget(tier).coming_cells()),
        reusable_at_once_(view.steps_in_flight == 0) {}

  // Cells that nobody holds, is promised, or was given by this plan.
  int64_t available() const {
    // A block that one sequence gives up may be one that another adopts: it then becomes free for nobody.
    return left_ + std::max<int64_t>(0, given_up_ - adopted_in_use_);
  }
  // Cells that come free when steps and transfers in flight, and those of this plan, have ended.
  int64_t coming() const { return coming_; }

  // Allocates cells, or keeps them for a promise.
  void take(uint32_t cells) { left_ -= cells; }
  // A promise of so many cells ends unused.
  void end_promise(uint32_t cells) { left_ += cells; }
  // A sequence names cached blocks of so many cells, of which `idle` were referenced by nobody.
  void adopt(uint32_t cells, uint32_t idle) {
    left_ -= idle;
    adopted_in_use_ += cells - std::min(cells, idle);
  }
  // A sequence gives up all its cells, of which it alone references `own`.
  void give_up(uint32_t own) { (reusable_at_once_ ? given_up_ : coming_) += own; }
  // It gives up so many as soon as they have been copied elsewhere.
  void give_up_later(uint32_t own) { coming_ += own; }

 private:
  int64_t left_;
  int64_t coming_;
  int64_t given_up_ = 0;
  int64_t adopted_in_use_ = 0;
  bool reusable_at_once_;
};

// The cells that adding copies of a rectangle to a tier takes, at the most: what is there already is known of
// the sequence as a whole, and of its last block. blocks: that its table names by now. `tail`: a block that
// is not full counts.
inline uint32_t cells_to_add(const CacheGeometry& geometry, const SeqView& seq, uint32_t blocks,
                             Interval tokens, const LayerSet& layers, Tier tier, bool tail) {
  const bool last_block_only = tokens.end == seq.ready_tokens && tokens.size() < geometry.block_tokens;
  if (tier == Tier::kDevice && last_block_only && seq.tail_resident) return 0;
  const uint32_t meant = tail ? geometry.blocks_for(tokens.size()) : tokens.size() / geometry.block_tokens;
  const uint32_t all = blocks * geometry.groups();
  return std::min(meant * layers.count(), all - std::min(all, seq.kv_cells(tier)));
}

// What rows [begin, end) of a sequence take, whose table names `blocks` blocks, of which the layer group that
// has fewest has `resident` on the device.
struct RowNeeds {
  uint32_t new_blocks = 0;
  uint32_t full_blocks = 0;   // of those: filled by these rows from their first token on
  uint32_t device_cells = 0;  // for the new blocks: the full ones in `kept` groups, the last one in all
  uint32_t host_cells = 0;    // for the full ones in the other groups
  uint32_t stage_blocks = 0;  // of each layer, at the most, that pass through the stage ring

  RowNeeds(const CacheGeometry& geometry, uint32_t blocks, uint32_t resident, uint32_t end,
           const LayerSet& kept) {
    const uint32_t covered = geometry.blocks_for(end);
    new_blocks = covered > blocks ? covered - blocks : 0;
    full_blocks =
        std::min(new_blocks, end / geometry.block_tokens - std::min(end / geometry.block_tokens, blocks));
    const uint32_t groups = geometry.groups();
    const uint32_t elsewhere = groups - kept.count();
    device_cells = full_blocks * kept.count() + (new_blocks - full_blocks) * groups;
    host_cells = full_blocks * elsewhere;
    stage_blocks = blocks - resident + (elsewhere > 0 ? full_blocks : 0);
  }
};

}  // namespace kvasir
