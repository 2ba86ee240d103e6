#include "sched/mechanisms/spill_to_peers.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace kvasir {
namespace {

// Blocks at the begin of a history of which nothing is on the device any more, in whole leaves. Behind them
// some may have gone, too, and come home in part.
uint32_t spilt_blocks(const View& view, const SeqView& seq) {
  return seq.first_device_block - seq.first_device_block % view.geometry.blocks_per_leaf();
}

}  // namespace

uint32_t spill_to_peers(const View& view, uint32_t cells, PlanBuilder& builder) {
  const CacheGeometry& g = view.geometry;
  const LayerSet all = LayerSet::all(g.groups());
  std::vector<const SeqView*> longest;
  for (const SeqView& seq : view.running) {
    // One at a time: what leaves already is counted as coming.
    if (seq.leaving_cells > 0 || seq.stalled || !seq.dropped.empty()) continue;
    if (builder.preempted(seq.id) || builder.kv_placement(seq).streams || !builder.passes_ring(seq)) continue;
    longest.push_back(&seq);
  }
  std::stable_sort(longest.begin(), longest.end(), [](const SeqView* a, const SeqView* b) {
    return a->resident_blocks > b->resident_blocks;
  });
  uint32_t coming = 0;
  bool room = true;
  for (const SeqView* seq : longest) {
    // What is to come free is its own; the newest leaf stays.
    const uint32_t first = spilt_blocks(view, *seq) * g.block_tokens;
    const uint32_t last = seq->ready_tokens / kLeafTokens * kLeafTokens;
    const uint32_t missing = cells - coming;
    uint32_t begin = first;
    for (; begin + kLeafTokens < last && coming < cells; begin += kLeafTokens) {
      const Interval leaf = {begin, begin + kLeafTokens};
      room = builder.add_copies(*seq, leaf, all, Tier::kHost, Trigger::kNow);
      if (!room) break;
      builder.release(*seq, leaf, all, Tier::kDevice);
      coming += g.blocks_per_leaf() * g.groups();
    }
    if (begin > first) {
      builder.because(
          {Cause::kSpills, seq->id, {}, static_cast<double>(missing), static_cast<double>(begin - first)});
    }
    if (!room || coming >= cells) break;
  }
  return coming;
}

void bring_home(const View& view, uint32_t spare, PlanBuilder& builder) {
  const CacheGeometry& g = view.geometry;
  std::unordered_map<SeqId, const SeqView*> running;
  for (const SeqView& seq : view.running) running.emplace(seq.id, &seq);
  int64_t room = view.device.available_cells() - int64_t{spare};
  std::unordered_map<SeqId, uint32_t> parted;  // blocks of leaves of which some comes home
  for (const PeersView::Recalled& r : view.peers.in_recalled) {
    const auto found = running.find(r.seq);
    if (found == running.end() || builder.preempted(r.seq)) continue;
    const SeqView& seq = *found->second;
    // On its way already.
    if (seq.transfers > 0 || builder.kv_placement(seq).streams || room < int64_t{r.blocks}) continue;
    const Interval tokens = {r.block * g.block_tokens, (r.block + r.blocks) * g.block_tokens};
    // The rest of those leaves is staged: what the ring cannot pass would never run again.
    const uint32_t there =
        seq.peer_blocks - std::min(seq.peer_blocks, parted[r.seq] + g.blocks_of_leaves(tokens));
    if (seq.blocks - seq.resident_blocks > view.stage_blocks + there) continue;
    if (!builder.add_copies(seq, tokens, LayerSet::one(r.group), Tier::kDevice, Trigger::kNow)) continue;
    builder.release(seq, tokens, LayerSet::one(r.group), Tier::kHost);
    room -= r.blocks;
    parted[r.seq] += g.blocks_of_leaves(tokens);
  }
}

}  // namespace kvasir
