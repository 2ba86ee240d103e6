// The part of a running sequence's history that is not kept on the device: its oldest blocks. The first of
// them are dropped, and recomputed in each step; the others lie on the slower tier, and are staged in
// each step.
//
//   blocks   0 .. dropped | dropped .. dropped + staged | .. blocks
//            dropped        on the slower tier            on the device
//
// Or by layers: all of them are dropped in the first layer groups and staged in the others.
//
// Source: eLLM, Section 3.2 (oldest tokens first) and Section 4.3.1 (which of them are swapped).
#pragma once

#include <cstdint>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// In blocks.
struct PartialHistory {
  uint32_t dropped = 0;
  uint32_t staged = 0;
  uint32_t blocks() const { return dropped + staged; }
  friend bool operator==(const PartialHistory&, const PartialHistory&) = default;
};

// The current state, as if this plan's transfers had ended. By layers, a block counts as dropped if any of
// its layers is dropped.
PartialHistory partial_history(const SeqView& seq, const CacheGeometry& geometry);

// Whether the kept part may change: nothing of the history is being transferred, and the sequence does not
// stream. The caller ensures that the ring can pass the rest.
bool may_be_partial(const SeqView& seq, const PlanBuilder& builder);

// Gives up full blocks on the device until `wanted` of them are not kept, of which `wanted.dropped` are
// dropped. It never keeps more than now, and stages no more than the slower tier has room for. Cells become
// free when this plan's rows have read them, or when they have been copied. dropped_groups: by layers, the
// number of first groups that drop their blocks; 0: by tokens. Returns the number of blocks given up.
// REQUIRES: may_be_partial(seq, builder), it runs
uint32_t keep_less(const View& view, const SeqView& seq, PartialHistory wanted, uint32_t dropped_groups,
                   PlanBuilder& builder);

// Brings staged blocks back to the device for good, the newest first, as many as fit into `room`. If none is
// staged, the rows that the caller plans next keep the blocks that they recompute, provided that all fit:
// `restore` is their RowOptions::restore. Returns the number of blocks that come back. REQUIRES: as for
// keep_less(), and it has no rows in this plan
uint32_t keep_more(const View& view, const SeqView& seq, uint32_t room, PlanBuilder& builder,
                   Writes* restore);

}  // namespace kvasir
