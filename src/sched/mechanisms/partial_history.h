// The part of a running sequence's history that is not kept on the device: its oldest blocks. The first of
// them are dropped, and computed again in each step; the others lie on the slower tier, and are staged in
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

// As it is, or as it will be when this plan's transfers have ended. By layers, a block of which any layer is
// dropped counts as dropped.
PartialHistory partial_history(const SeqView& seq, const CacheGeometry& geometry);

// Whether more or less of it may be kept: nothing of it is being transferred, and it does not stream. The
// caller sees to it that the ring can pass the rest.
bool may_be_partial(const SeqView& seq, const PlanBuilder& builder);

// Gives up full blocks on the device until `wanted` of them are not kept, of which `wanted.dropped` are
// dropped; never fewer than now, and no more staged than the slower tier has room for. What it gives up comes
// free when this plan's rows have read it, or when it has been copied. dropped_groups: by layers, how many of
// the first groups drop their blocks; 0: by tokens. Returns how many blocks more are not kept.
// REQUIRES: may_be_partial(seq, builder), it runs
uint32_t keep_less(const View& view, const SeqView& seq, PartialHistory wanted, uint32_t dropped_groups,
                   PlanBuilder& builder);

// Brings staged blocks back to the device for good, the newest first, as many as `room` has; where none is
// staged, the rows that the caller plans next keep what they compute again, if there is room for all of it:
// `restore` is what they are to have as RowOptions::restore. Returns how many blocks come back. REQUIRES: as
// for keep_less(), and it has no rows in this plan
uint32_t keep_more(const View& view, const SeqView& seq, uint32_t room, PlanBuilder& builder,
                   Writes* restore);

}  // namespace kvasir
