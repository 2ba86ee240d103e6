#include "plan/admission.h"

#include <algorithm>

#include "plan/kv_placement.h"

namespace kvasir {
namespace {

struct Cells {
  uint32_t device = 0;
  uint32_t slower = 0;
};

uint32_t tokens_asked(const SeqView& seq, const AdmitOptions& options) {
  return std::max(seq.known_tokens, options.total_tokens);
}

// The cells to compute after the first `blocks` blocks, where K and V of full blocks stay on the device only
// in the layer groups of options.kv.
Cells cells_behind(const View& view, const SeqView& seq, const AdmitOptions& options, uint32_t blocks) {
  const CacheGeometry& g = view.geometry;
  const uint32_t tokens = tokens_asked(seq, options);
  const uint32_t full = tokens / g.block_tokens;
  const uint32_t fresh = full - std::min(full, blocks);
  const uint32_t last = g.blocks_for(tokens) > std::max(full, blocks) ? g.groups() : 0;
  const LayerSet elsewhere = LayerSet::all(g.groups()) - *options.kv - options.x;
  return {fresh * options.kv->count() + last, fresh * elsewhere.count()};
}

uint32_t less(uint32_t a, uint32_t b) {
  return a - std::min(a, b);
}

}  // namespace

uint32_t slower_cells_to_come(const View& view, const SeqView& seq) {
  const KvPlacement where = kv_placement_of(view, seq);
  if (!where.streams) return 0;
  // The block in which the sequence ends stays on the device. With peers it is counted all the same, because
  // KvPlacement counts it: if peers lent less and had no more, the sequence would seem not to fit.
  const uint32_t at_its_end = view.peers.most_borrowed > 0 ? 0 : 1;
  const uint32_t blocks = view.geometry.blocks_for(seq.max_total_tokens) - at_its_end;
  const uint32_t most = std::min(blocks, where.away_blocks) * (view.geometry.groups() - where.kept_groups);
  const Tier slower = view.slower_tier();
  return less(most, seq.kv_cells(slower) + seq.promised(slower));
}

Admission Admission::of_new(const View& view, const PlanState::Seq& state, uint32_t adopted,
                            const AdmitOptions& options) {
  const SeqView& seq = *state.view;
  const CacheGeometry& g = view.geometry;
  const uint32_t groups = g.groups();
  const KvPlacement where = kv_placement_of(view, seq);
  const bool partial = options.kv && !where.streams;
  const uint32_t blocks = g.blocks_for(tokens_asked(seq, options));
  const uint32_t there = adopted > 0 ? seq.cached_resident_cells : 0;
  const uint32_t dead = g.dead_blocks(adopted * g.block_tokens) * g.windowed.count();
  const bool some_elsewhere = adopted * groups - dead > there;
  const bool stay_at_peers = where.streams || seq.attended;
  const uint32_t at_peers = adopted > 0 && stay_at_peers ? seq.cached_peer_blocks : 0;
  const bool rest_is_here = (adopted - at_peers) * groups - dead == there;

  Admission a;
  a.adopted_blocks = adopted;
  if (some_elsewhere) {
    if (seq.attended && rest_is_here) {
      // Nothing passes the ring.
    } else if (where.streams || partial || seq.attended) {
      a.ring_blocks += adopted - at_peers;
    } else {
      a.brought_back = {0, adopted * g.block_tokens};
    }
    // X that arrives over a link passes through the ring to be projected to KV.
    if (g.has(Form::kX) && view.total_cells(view.slower_tier()) > 0) a.ring_blocks += adopted;
  }
  const uint32_t promised = state.promised[index_of(Tier::kDevice)];
  if (partial) {
    const Cells behind = cells_behind(view, seq, options, adopted);
    a.device_cells = less(behind.device, promised);
    a.slower_cells = behind.slower;
    return a;
  }
  const uint32_t stay = std::min(at_peers, where.away_blocks) * (groups - where.kept_groups);
  a.slower_cells = less(slower_cells_to_come(view, seq), stay);
  if (where.streams) {
    // In addition to adopted blocks it needs at most two blocks at a time: the one in which a chunk begins
    // and the one in which it ends. They are not promised, nor are the layer groups that stay.
    const uint32_t away = std::min(blocks, where.away_blocks);
    a.free_device_cells = 2 * groups + away * where.kept_groups;
    a.device_cells = less((blocks - std::min(blocks, std::max(away, adopted))) * groups, promised);
  } else {
    const uint32_t adopts = less(there, seq.cached_shared_cells);
    a.device_cells = less(less(g.most_cells(blocks), adopts + at_peers * groups), promised);
  }
  return a;
}

Admission Admission::of_held(const View& view, const PlanState::Seq& state, const AdmitOptions& options) {
  const SeqView& seq = *state.view;
  const CacheGeometry& g = view.geometry;
  const uint32_t groups = g.groups();
  const bool streams = kv_placement_of(view, seq).streams;
  const bool partial = options.kv && !streams;
  // All that is not on the device is attended at peers, and stays there.
  const bool stays = seq.attended && seq.blocks - seq.resident_blocks == seq.peer_blocks;
  const uint32_t at_peers = stays ? seq.peer_blocks : 0;
  const bool tail_only = partial || streams || at_peers > 0;
  const uint32_t held = seq.kv_cells(Tier::kDevice);
  const Interval back = {tail_only ? seq.ready_tokens / g.block_tokens * g.block_tokens : 0,
                         seq.ready_tokens};

  Admission a;
  uint32_t missing = 0;
  if (!back.empty() && (held < seq.live_cells(g) || seq.leaving_cells > 0)) {
    a.brought_back = back;
    missing = cells_to_add(
        g, seq, seq.blocks,
        {Verb::kAdd, seq.id, back, LayerSet::all(groups), Form::kKv, Tier::kDevice, Trigger::kNow});
  }
  const uint32_t promised = state.promised[index_of(Tier::kDevice)];
  uint32_t more = 0;
  if (partial) {
    const Cells behind = cells_behind(view, seq, options, seq.blocks);
    more = less(behind.device, promised);
    a.slower_cells = behind.slower;
  } else {
    if (!streams) {
      more = less(g.most_cells(g.blocks_for(tokens_asked(seq, options))),
                  promised + held + missing + at_peers * groups);
    }
    a.slower_cells = slower_cells_to_come(view, seq);
  }
  // The cells brought back are promised together with the cells to compute.
  if (more > 0) a.device_cells = missing + more;
  // It may begin a block in its next step.
  if (tail_only) a.free_device_cells = groups;
  return a;
}

}  // namespace kvasir
