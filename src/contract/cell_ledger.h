// The cells that a plan takes and gives on one tier, and the planes of the stage ring that its rows need,
// counted alike by whoever makes a plan and whoever checks it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "contract/interval.h"
#include "contract/step_plan.h"
#include "contract/view.h"

namespace kvasir {

// The order of the calls does not matter: what is left is a function of their sums, and a plan fits if
// fits() holds at its end. A copy is cheap: try on a copy, then assign.
class CellLedger {
 public:
  CellLedger(const View& view, Tier tier)
      : budget_(view.budget(tier)),
        coming_(budget_.coming[index_of(Form::kKv)]),
        reusable_at_once_(view.steps_in_flight == 0) {
    std::copy(budget_.promised.begin(), budget_.promised.end(), needs_.begin());
  }

  // Cells that nobody holds, is promised, or was given by this plan.
  int64_t available(Form form = Form::kKv) const {
    FrameBudget left = budget_;
    std::array<int64_t, kForms> needs = needs_;
    for (size_t i = 1; i <= kForms; ++i) {
      const size_t f = (index_of(form) + i) % kForms;  // `form` itself at the end
      // A block that one sequence gives up may be one that another adopts: it then becomes free for nobody.
      needs[f] -= std::max<int64_t>(0, given_up_[f] - adopted_in_use_[f]);
      // Each idle cell may lie in a spare slab of its own, of which the rest is then loose: good for its own
      // form alone.
      const auto slabs = static_cast<uint32_t>(std::min<int64_t>(idle_[f], left.spare_slabs));
      left.spare_slabs -= slabs;
      left.loose[f] += slabs * left.per_slab[f];
    }
    return left.available_beside(needs, form);
  }
  bool fits() const {
    if (!fits_) fits_ = every_form_fits();
    return *fits_;
  }
  // Cells of KV that come free when steps and transfers in flight, and those of this plan, have ended.
  int64_t coming() const { return coming_; }

  // Allocates cells, or keeps them for a promise.
  void take(uint32_t cells, Form form = Form::kKv) { add(needs_[index_of(form)], cells); }
  // So many of the cells that are taken may turn out to be there already, idle.
  void find(uint32_t cells, Form form = Form::kKv) { add(idle_[index_of(form)], cells); }
  // A promise of so many cells ends unused.
  void end_promise(uint32_t cells) { add(needs_[index_of(Form::kKv)], -int64_t{cells}); }
  // A sequence names cached blocks of so many cells, of which `idle` were referenced by nobody.
  void adopt(uint32_t cells, uint32_t idle, Form form = Form::kKv) {
    take(idle, form);
    find(idle, form);
    add(adopted_in_use_[index_of(form)], cells - std::min(cells, idle));
  }
  // A sequence gives up cells, of which it alone references `own`.
  void give_up(uint32_t own, Form form = Form::kKv) {
    if (reusable_at_once_) {
      add(given_up_[index_of(form)], own);
    } else {
      give_up_later(own, form);
    }
  }
  // It gives up so many as soon as they have been copied elsewhere, or this plan's rows have read them.
  void give_up_later(uint32_t own, Form form = Form::kKv) {
    if (form == Form::kKv) coming_ += own;
  }

 private:
  void add(int64_t& sum, int64_t cells) {
    if (cells == 0) return;
    sum += cells;
    fits_.reset();
  }
  bool every_form_fits() const {
    for (size_t f = 0; f < kForms; ++f) {
      // Of a form that the tier does not have there are none, and none are needed.
      if (budget_.per_slab[f] == 0 && needs_[f] <= 0) continue;
      if (available(static_cast<Form>(f)) < 0) return false;
    }
    return true;
  }

  FrameBudget budget_;
  std::array<int64_t, kForms> needs_{};
  std::array<int64_t, kForms> given_up_{};
  std::array<int64_t, kForms> adopted_in_use_{};
  std::array<int64_t, kForms> idle_{};
  // What fits() has said of it as it is: most rows take nothing.
  mutable std::optional<bool> fits_;
  int64_t coming_;
  bool reusable_at_once_;
};

// The cells that adding copies of a rectangle to a tier takes, at the most: what is there already is known of
// the sequence as a whole, and of its last block. blocks: that its table names by now; adopted: cells at that
// place of which the view does not know yet. `tail`: a block that is not full counts.
inline uint32_t cells_to_add(const CacheGeometry& geometry, const SeqView& seq, uint32_t blocks,
                             Interval tokens, const LayerSet& layers, Tier tier, bool tail,
                             Form form = Form::kKv, uint32_t adopted = 0) {
  const bool last_block_only = tokens.end == seq.ready_tokens && tokens.size() < geometry.block_tokens;
  if (form == Form::kKv && tier == Tier::kDevice && last_block_only && seq.tail_resident) return 0;
  const uint32_t meant = tail ? geometry.blocks_for(tokens.size()) : tokens.size() / geometry.block_tokens;
  const uint32_t all = blocks * geometry.groups();
  return std::min(meant * layers.count(), all - std::min(all, seq.held(form, tier) + adopted));
}

// What rows [begin, end) of a sequence take, whose table names `blocks` blocks, of which the layer group that
// has fewest has `resident` on the device. through: the layer groups whose full blocks go to a slower tier as
// they are written.
struct RowNeeds {
  uint32_t new_blocks = 0;
  uint32_t full_blocks = 0;   // of those: filled by these rows from their first token on
  uint32_t device_cells = 0;  // for the new blocks: the full ones in `kept` groups, the last one in all
  uint32_t slow_cells = 0;    // for the full ones, in the groups of `through`
  uint32_t x_cells = 0;       // on the device
  uint32_t h_cells = 0;
  uint32_t stage_blocks = 0;  // of each layer, at the most, that pass through the stage ring

  RowNeeds(const CacheGeometry& geometry, uint32_t blocks, uint32_t resident, uint32_t end,
           const Writes& writes, const LayerSet& through) {
    const uint32_t covered = geometry.blocks_for(end);
    new_blocks = covered > blocks ? covered - blocks : 0;
    stage_blocks = blocks - resident;
    if (new_blocks == 0) return;
    full_blocks =
        std::min(new_blocks, end / geometry.block_tokens - std::min(end / geometry.block_tokens, blocks));
    const uint32_t groups = geometry.groups();
    device_cells = full_blocks * writes.kv.count() + (new_blocks - full_blocks) * groups;
    slow_cells = full_blocks * through.count();
    x_cells = new_blocks * writes.x.count();
    h_cells = new_blocks * writes.h.count();
    if (writes.kv.count() < groups) stage_blocks += full_blocks;
  }
};

// Blocks of each layer, at the most, that pass the ring for the history of a sequence, what it computes again
// included. lacking: its blocks without a frame of KV, in the layer group that has most of them; of
// `x_elsewhere` X comes over a link first.
inline uint32_t history_stage_blocks(const CacheGeometry& geometry, const SeqView& seq, uint32_t lacking,
                                     uint32_t x_elsewhere) {
  if (seq.dropped.empty()) return lacking + x_elsewhere;
  const uint32_t blocks = geometry.blocks_for(seq.dropped.size());
  // Where all that passes again is dropped it is among those that lack a frame.
  const bool solid = blocks * (seq.dropped_end_group - seq.restart_group) == seq.bare_cells;
  const uint32_t more = solid ? blocks - std::min(blocks, lacking) : blocks;
  const uint32_t h =
      seq.restart_group > 0 && seq.held(Form::kH, Tier::kHost) + seq.held(Form::kH, Tier::kDisk) > 0 ? blocks
                                                                                                     : 0;
  return lacking + more + x_elsewhere + h;
}

}  // namespace kvasir
