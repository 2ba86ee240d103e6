// Counts the cells that a plan takes and gives up on one tier, and the blocks of the stage ring that its rows
// need. The plan builder and the plan checker share this arithmetic.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "contract/interval.h"
#include "contract/step_plan.h"
#include "contract/view.h"

namespace kvasir {

// The order of the calls does not matter: the result depends on their sums only, and a plan fits if fits()
// holds after the last call. Copies are cheap: try a change on a copy, then assign it.
class CellLedger {
 public:
  CellLedger(const View& view, Tier tier)
      : budget_(view.budget(tier)),
        coming_(budget_.coming[index_of(Form::kKv)]),
        reusable_at_once_(view.steps_in_flight == 0) {
    std::copy(budget_.promised.begin(), budget_.promised.end(), needs_.begin());
  }

  // Cells that are not held, not promised and not taken by this plan.
  int64_t available(Form form = Form::kKv) const {
    FrameBudget left = budget_;
    std::array<int64_t, kForms> needs = needs_;
    for (size_t i = 1; i <= kForms; ++i) {
      const size_t f = (index_of(form) + i) % kForms;  // `form` itself at the end
      // A sequence may adopt a block that another gives up: its cells then do not become free.
      needs[f] -= std::max<int64_t>(0, given_up_[f] - adopted_in_use_[f]);
      // In the worst case each idle cell lies in a different spare slab. The rest of that slab then becomes
      // loose: only the same form can use it.
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
  // KV cells that become free when the steps and transfers in flight, and those of this plan, have ended.
  int64_t coming() const { return coming_; }

  // Allocates cells or reserves them for a promise.
  void take(uint32_t cells, Form form = Form::kKv) { add(needs_[index_of(form)], cells); }
  // `cells` of the taken cells may turn out to exist already, as idle cells.
  void find(uint32_t cells, Form form = Form::kKv) { add(idle_[index_of(form)], cells); }
  // A promise of `cells` cells ends unused.
  void end_promise(uint32_t cells) { add(needs_[index_of(Form::kKv)], -int64_t{cells}); }
  // A sequence adopts `cells` cells of cached blocks; `idle` of them were unreferenced.
  void adopt(uint32_t cells, uint32_t idle, Form form = Form::kKv) {
    take(idle, form);
    find(idle, form);
    add(adopted_in_use_[index_of(form)], cells - std::min(cells, idle));
  }
  // A sequence gives up cells; `own` of them have no other reference.
  void give_up(uint32_t own, Form form = Form::kKv) {
    if (reusable_at_once_) {
      add(given_up_[index_of(form)], own);
    } else {
      give_up_later(own, form);
    }
  }
  // It gives up `own` cells once they have been copied elsewhere or the rows of this plan have read them.
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
      // The tier has no cells of this form, and none are needed.
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
  // Cached result of fits(), empty after a change: most rows take no cells.
  mutable std::optional<bool> fits_;
  int64_t coming_;
  bool reusable_at_once_;
};

// Upper bound of the cells that adding a change's copies takes. It is a bound because existing copies are
// known only for the whole sequence and for its last block. `blocks`: current size of its block table;
// `adopted`: cells in this form on this tier that the view does not show yet; `stops`: the sequence stops
// running in this plan.
inline uint32_t cells_to_add(const CacheGeometry& geometry, const SeqView& seq, uint32_t blocks,
                             const CopyChange& change, bool stops = false, uint32_t adopted = 0) {
  const bool last_block_only =
      change.tokens.end == seq.ready_tokens && change.tokens.size() < geometry.block_tokens;
  const bool device_kv = change.form == Form::kKv && change.tier == Tier::kDevice;
  if (device_kv && last_block_only && seq.tail_resident) return 0;
  const uint32_t named = change.blocks(geometry.block_tokens, change.adds_tail(stops)).size();
  // What it has just adopted the view does not show.
  const uint32_t dead_blocks =
      seq.blocks == 0 ? geometry.dead_blocks(blocks * geometry.block_tokens) : seq.dead_blocks;
  const uint32_t dead = std::min(blocks, dead_blocks) * geometry.windowed.count();
  const uint32_t all = blocks * geometry.groups() - dead;
  return std::min(named * change.layers.count(),
                  all - std::min(all, seq.held(change.form, change.tier) + adopted));
}

// The cells that rows [begin, end) of a sequence take. `blocks`: size of its block table; `resident`: blocks
// on the device in the layer group with the fewest there; `through`: the layer groups whose full blocks go to
// a slower tier as they are written.
struct RowNeeds {
  uint32_t new_blocks = 0;
  uint32_t full_blocks = 0;   // new blocks that these rows fill from their first token on
  uint32_t device_cells = 0;  // new blocks: full ones in the groups of writes.kv, the last one in all
  uint32_t slow_cells = 0;    // full blocks in the groups of `through`
  uint32_t x_cells = 0;       // on the device
  uint32_t stage_blocks = 0;  // upper bound of the blocks per layer that pass through the stage ring

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
    if (writes.kv.count() < groups) stage_blocks += full_blocks;
  }
};

// Upper bound of the blocks per layer that pass through the stage ring for the history of a sequence,
// including recomputed blocks. `missing`: its blocks without a KV frame, in the layer group with the most of
// them. `x_elsewhere`: blocks whose X arrives over a link first.
inline uint32_t history_stage_blocks(const CacheGeometry& geometry, const SeqView& seq, uint32_t missing,
                                     uint32_t x_elsewhere) {
  if (seq.dropped.empty()) return missing + x_elsewhere;
  const uint32_t blocks = geometry.blocks_for(seq.dropped.size());
  // If every recomputed cell is a dropped one, `missing` already includes the recomputed blocks.
  const bool solid = blocks * seq.dropped_end_group == seq.dropped_cells;
  const uint32_t more = solid ? blocks - std::min(blocks, missing) : blocks;
  return missing + more + x_elsewhere;
}

}  // namespace kvasir
