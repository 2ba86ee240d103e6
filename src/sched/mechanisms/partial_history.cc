#include "sched/mechanisms/partial_history.h"

#include <algorithm>

namespace kvasir {
namespace {

// Gives up what there is of them on every tier, so that they are dropped.
void drop_everywhere(const View& view, const SeqView& seq, Interval blocks, const LayerSet& layers,
                     PlanBuilder& builder) {
  const uint32_t b = view.geometry.block_tokens;
  for (Tier tier : kAllTiers) {
    if (seq.kv_cells(tier) == 0) continue;
    builder.drop(seq, {blocks.begin * b, blocks.end * b}, layers, tier);
  }
}

}  // namespace

PartialHistory partial_history(const SeqView& seq, const CacheGeometry& geometry) {
  const uint32_t dropped = geometry.blocks_for(seq.dropped.end);
  const uint32_t missing = seq.blocks - seq.resident_blocks;
  return {dropped, missing - std::min(missing, dropped)};
}

bool may_be_partial(const SeqView& seq, const PlanBuilder& builder) {
  // What a peer keeps for it stays there.
  return !seq.attended && !seq.stalled && !seq.tail_busy && seq.transfers == 0 && seq.leaving_cells == 0 &&
         !builder.kv_placement(seq).streams && !builder.releases(seq.id);
}

uint32_t keep_less(const View& view, const SeqView& seq, PartialHistory wanted, uint32_t dropped_groups,
                   PlanBuilder& builder) {
  const uint32_t b = view.geometry.block_tokens;
  const LayerSet all = LayerSet::all(view.geometry.groups());
  const LayerSet dropping = dropped_groups > 0 ? LayerSet::all(dropped_groups) : all;
  const PartialHistory now = partial_history(seq, view.geometry);
  const uint32_t full = seq.ready_tokens / b;
  const uint32_t end = std::min(full, wanted.blocks());
  if (end <= now.blocks()) return 0;
  // By layers all of them are dropped, in some groups.
  const uint32_t dropped = std::clamp(dropped_groups > 0 ? end : wanted.dropped, now.dropped, end);
  const Interval away = {dropped_groups > 0 ? now.blocks() : std::max(dropped, now.blocks()), end};
  const LayerSet staging = dropped_groups > 0 ? all - dropping : all;
  uint32_t more = end - now.blocks();
  if (!away.empty() && !staging.empty()) {
    const Interval tokens = {away.begin * b, away.end * b};
    if (builder.add_copies(seq, tokens, staging, view.slower_tier(), Trigger::kNow)) {
      builder.release(seq, tokens, staging, Tier::kDevice);
    } else if (dropped_groups > 0) {
      return 0;
    } else {
      more -= away.size();
    }
  }
  if (dropped > now.dropped) drop_everywhere(view, seq, {now.dropped, dropped}, dropping, builder);
  return more;
}

uint32_t keep_more(const View& view, const SeqView& seq, uint32_t room, PlanBuilder& builder,
                   Writes* restore) {
  const uint32_t b = view.geometry.block_tokens;
  const PartialHistory now = partial_history(seq, view.geometry);
  const LayerSet all = LayerSet::all(view.geometry.groups());
  if (now.staged > 0) {
    const uint32_t back = std::min(now.staged, room);
    if (back == 0) return 0;
    const Interval tokens = {(now.blocks() - back) * b, now.blocks() * b};
    return builder.add_copies(seq, tokens, all, Tier::kDevice, Trigger::kNow) ? back : 0;
  }
  if (now.dropped == 0 || now.dropped > room) return 0;
  restore->kv = all;
  return now.dropped;
}

}  // namespace kvasir
