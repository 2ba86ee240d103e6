#include "cache/step_stager.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"

namespace kvasir {
namespace {

// Adds a wait, unless it is the last one already.
void wait_once(Step& step, const TransferWait& wait) {
  if (step.waits.empty() || step.waits.back() != wait) step.waits.push_back(wait);
}

}  // namespace

bool SeqScratch::passes_ring() const {
  const auto any = [](const std::vector<LayerSet>& sets) {
    return std::any_of(sets.begin(), sets.end(), [](const LayerSet& s) { return !s.empty(); });
  };
  return any(lacking) || any(computed);
}

StepStager::StepStager(KvCache& cache)
    : cache_(cache), ring_(cache.geometry(), cache.options().device_bytes, cache.options().stage_blocks()) {}

void StepStager::stage(Step& step, std::span<const SeqScratch> sequences) {
  if (sequences.empty()) return;
  for (const SeqScratch& s : sequences) {
    if (s.passes_ring()) share_table(step, s);
  }
  ring_.begin_step();
  for (uint32_t layer = 0; layer < cache_.geometry().layers; ++layer) {
    for (const SeqScratch& s : sequences) {
      stage_layer(step, s, layer);
      write_back_frames(step, s, layer);
    }
  }
}

// All slices of a sequence read, and write, at the same places.
void StepStager::share_table(Step& step, const SeqScratch& s) const {
  const auto first = static_cast<uint32_t>(step.staged.size());
  const auto blocks = static_cast<uint32_t>(s.blocks.size());
  step.staged.resize(step.staged.size() + size_t{cache_.geometry().layers} * blocks);
  const auto share = [&](uint32_t slice) {
    step.slices[slice].first_staged = first;
    step.slices[slice].blocks = blocks;
  };
  share(s.slice);
  for (uint32_t slice : s.others) share(slice);
}

KvPlanes& StepStager::staged(Step& step, const SeqScratch& s, uint32_t layer, uint32_t block) const {
  const StepSlice& slice = step.slices[s.slice];
  return step.staged[slice.first_staged + layer * slice.blocks + block];
}

// ---------------------------------------------------------------- a layer

void StepStager::stage_layer(Step& step, const SeqScratch& s, uint32_t layer) {
  const uint32_t group = cache_.geometry().group_of(layer);
  Incoming in;
  Batch out;
  restart_rows(step, s, layer, in);
  std::vector<bool> at_peers(s.blocks.size());
  leave_at_peers(step, s, layer, at_peers);
  for (uint32_t b = 0; b < s.blocks.size(); ++b) {
    if (at_peers[b]) continue;
    const bool computed = s.computed[b].contains(group);
    if (!computed && !s.lacking[b].contains(group)) continue;
    if (computed || s.fresh[b]) {
      take_slot_for_rows(step, s, layer, b, out);
    } else {
      read_block(step, s, layer, b, in);
    }
  }
  flush(step, s, layer, in);
  if (!out.transfer.segments.empty()) {
    // Before what merely leaves: the ring's next user waits for it.
    fire(step, layer_written(layer), s, TransferPriority::kPrefetch, out);
  }
  if (mutant(Mutant::kStagedWrongBlock) && layer == 1 && s.blocks.size() > 1) {
    const auto comes = [&](uint32_t b) {
      return s.lacking[b].contains(group) && !s.fresh[b] && !s.computed[b].contains(group);
    };
    if (comes(0) && comes(1)) std::swap(staged(step, s, layer, 0), staged(step, s, layer, 1));
  }
}

void StepStager::leave_at_peers(Step& step, const SeqScratch& s, uint32_t layer,
                                std::vector<bool>& at_peers) {
  const CacheGeometry& g = cache_.geometry();
  if (cache_.options().borrowed_bytes == 0 || !s.others.empty()) return;
  const uint32_t group = g.group_of(layer);
  const Place place = {Form::kKv, Tier::kHost};
  const StepSlice& slice = step.slices[s.slice];
  const Holdings& holdings = cache_.holdings(slice.seq);
  const uint32_t per_leaf = g.blocks_per_leaf();
  std::vector<KvCache::Use> uses;
  std::vector<TransferId> fillers;
  // Every row sees all of such a leaf.
  const uint32_t leaves = slice.tokens.begin / kLeafTokens;
  for (uint32_t leaf = 0; leaf < leaves; ++leaf) {
    const uint32_t first = leaf * per_leaf;
    bool there = cache_.lies_at_peers(holdings, s.blocks, leaf, group);
    for (uint32_t b = first; there && b < first + per_leaf; ++b) {
      there =
          s.lacking[b].contains(group) && !s.computed[b].contains(group) && !s.fresh[b] && !s.fills(b, group);
    }
    if (!there) continue;
    const bool goes_on = !step.remote.empty() && step.remote.back().layer == layer &&
                         step.remote.back().slice == s.slice && step.remote.back().end_leaf == leaf;
    if (goes_on) {
      ++step.remote.back().end_leaf;
    } else {
      const auto first_piece = static_cast<uint32_t>(step.remote_pieces.size());
      step.remote.push_back({layer, s.slice, leaf, leaf + 1, first_piece});
    }
    for (uint32_t b = first; b < first + per_leaf; ++b) {
      const BlockMap::Copy& copy = cache_.block(s.blocks[b]).at(place).by_group[group];
      step.remote_pieces.push_back(copy.at - cache_.options().borrowed_begin() +
                                   g.layer_in_group(layer) * g.piece_bytes(Form::kKv));
      if (!mutant(Mutant::kRemoteFillSkipped)) {
        fillers.insert(fillers.end(), copy.fillers.begin(), copy.fillers.end());
      }
      if (g.layer_in_group(layer) == 0) uses.push_back({s.blocks[b], place, group, false});
      at_peers[b] = true;
    }
  }
  sort_once(fillers);
  for (TransferId filler : fillers) step.waits.push_back({layer, s.slice, filler});
  if (!uses.empty()) cache_.begin_read(uses);
}

// Rows that begin with H find it on the device, or in a slot.
void StepStager::restart_rows(Step& step, const SeqScratch& s, uint32_t layer, Incoming& in) {
  const CacheGeometry& g = cache_.geometry();
  for (uint32_t index : s.others) {
    if (step.slices[index].first_layer != layer || layer == 0) continue;
    const Interval tokens = step.slices[index].tokens;
    for (uint32_t b = g.block_of(tokens.begin); b < g.blocks_for(tokens.end); ++b) {
      const BlockMap::Block& block = cache_.block(s.blocks[b]);
      const BlockMap::Owner& owner = cache_.map().owner(s.blocks[b], cache_.holdings(step.slices[index].seq));
      const uint32_t group = g.group_of(layer);
      bool found = false;
      for (Tier tier : kAllTiers) {
        const Place from = {Form::kH, tier};
        if (found || !(owner.at(from) & block.at(from).usable()).contains(group)) continue;
        found = true;
        uint64_t at = block.at(from).by_group[group].at;
        if (tier != Tier::kDevice) {
          const StageRing::Slot slot = ring_.take(layer);
          bring(step, s, layer, b, from, slot, in);
          at = slot.at.k;
        }
        step.restarts.push_back({index, b, at});
      }
      KV_CHECK(found, "seq={} block={} group={}: no H to begin with", raw(step.slices[index].seq), b, group);
    }
  }
}

// K and V that rows of this step write: into a frame that becomes a copy, or a slot, and from there on.
void StepStager::take_slot_for_rows(Step& step, const SeqScratch& s, uint32_t layer, uint32_t block,
                                    Batch& out) {
  const CacheGeometry& g = cache_.geometry();
  const uint32_t group = g.group_of(layer);
  const uint64_t piece = g.piece_bytes(Form::kKv);
  KvPlanes& at = staged(step, s, layer, block);
  if (s.fills(block, group)) {
    at.k = s.filled[block][group] + g.layer_in_group(layer) * piece;
    at.v = at.k + g.layer_plane_bytes();
    return;
  }
  const StageRing::Slot slot = ring_.take(layer);
  at = slot.at;
  const bool taken = cache_.in_flight(slot.after);
  if (taken) wait_once(step, {layer, s.slice, slot.after, /*over=*/true});
  if (!s.to_slower[block].contains(group)) return;
  const Place to = {Form::kKv, cache_.options().slower_tier()};
  const uint64_t target = cache_.block(s.blocks[block]).at(to).by_group[group].at +
                          g.layer_in_group(layer) * g.piece_stride(to.form, to.tier);
  out.transfer.segments.push_back({{slot.at.k, Tier::kDevice}, {target, to.tier}, piece});
  out.uses.push_back({s.blocks[block], to, group, true});
  out.slots.push_back(slot);
  // Also where the rows leave the step because they waited for it in vain: whoever has the slot next comes
  // after this transfer, and so after that one.
  if (taken) out.transfer.after.push_back(slot.after);
}

Place StepStager::source_of(const Step& step, const SeqScratch& s, uint32_t block, uint32_t group) const {
  const BlockMap::Block& b = cache_.block(s.blocks[block]);
  const BlockMap::Owner& owner =
      cache_.map().owner(s.blocks[block], cache_.holdings(step.slices[s.slice].seq));
  for (bool ready : {true, false}) {
    for (bool preferred : {true, false}) {
      for (const Place& from : kCheapestFirst) {
        const BlockMap::Copies& copies = b.at(from);
        const LayerSet there = ready ? copies.usable() : copies.present & copies.current;
        const bool asked = (from.form == s.preferred) == preferred;
        // A frame that becomes KV is filled from X: KV would have been copied.
        if (s.fills(block, group) && from.form != Form::kX) continue;
        if (asked && from != kDeviceKv && (there & owner.at(from)).contains(group)) return from;
      }
    }
  }
  KV_CHECK(false, "seq={} block={} group={} is nowhere", raw(step.slices[s.slice].seq), block, group);
  return {};
}

void StepStager::read_block(Step& step, const SeqScratch& s, uint32_t layer, uint32_t block, Incoming& in) {
  const CacheGeometry& g = cache_.geometry();
  const uint32_t group = g.group_of(layer);
  KvPlanes& at = staged(step, s, layer, block);
  const Place from = source_of(step, s, block, group);
  if (s.fills(block, group)) {
    at.k = s.filled[block][group] + g.layer_in_group(layer) * g.piece_bytes(Form::kKv);
    at.v = at.k + g.layer_plane_bytes();
    return project(step, s, layer, block, from, at, in);
  }
  const StageRing::Slot slot = ring_.take(layer);
  at = slot.at;
  if (from.form == Form::kKv) return bring(step, s, layer, block, from, slot, in);
  if (cache_.in_flight(slot.after)) wait_once(step, {layer, s.slice, slot.after, /*over=*/true});
  project(step, s, layer, block, from, slot.at, in);
}

void StepStager::project(Step& step, const SeqScratch& s, uint32_t layer, uint32_t block, Place from,
                         KvPlanes to, Incoming& in) {
  const CacheGeometry& g = cache_.geometry();
  const uint32_t group = g.group_of(layer);
  const BlockMap::Block& b = cache_.block(s.blocks[block]);
  uint64_t x = b.at(from).by_group[group].at + g.layer_in_group(layer) * g.piece_bytes(Form::kX);
  if (from.tier == Tier::kDevice) {
    for (TransferId filler : b.at(from).by_group[group].fillers) wait_once(step, {layer, s.slice, filler});
  } else {
    const StageRing::Slot slot = ring_.take(layer);
    bring(step, s, layer, block, from, slot, in);
    x = slot.at.k;
  }
  const uint32_t first_position = mutant(Mutant::kProjectedAtOrigin) ? 0 : block * g.block_tokens;
  step.projections.push_back({layer, s.slice, first_position, b.tokens, x, to});
}

void StepStager::bring(Step& step, const SeqScratch& s, uint32_t layer, uint32_t block, Place from,
                       const StageRing::Slot& slot, Incoming& in) {
  const CacheGeometry& g = cache_.geometry();
  const uint32_t group = g.group_of(layer);
  const BlockMap::Copy& copy = cache_.block(s.blocks[block]).at(from).by_group[group];
  // Without overlap not before the layer before is done.
  const StepMoment earliest = step.hints.overlap || layer == 0 ? kStepBegins : layer_attended(layer - 1);
  const StepMoment moment = std::max(slot.free_from, earliest);
  if (moment != in.moment) flush(step, s, layer, in);
  in.moment = moment;
  const uint64_t piece = from.form == Form::kH ? 0 : g.layer_in_group(layer);
  uint64_t source = copy.at + piece * g.piece_stride(from.form, from.tier);
  if (mutant(Mutant::kDiskPlacesMixed) && from.tier == Tier::kDisk) {
    source -= std::min(source, g.piece_stride(from.form, from.tier));
  }
  in.batch.transfer.segments.push_back(
      {{source, from.tier}, {slot.at.k, Tier::kDevice}, g.piece_bytes(from.form)});
  auto& needs = in.batch.transfer.needs;
  needs.insert(needs.end(), copy.fillers.begin(), copy.fillers.end());
  if (cache_.in_flight(slot.after)) in.batch.transfer.after.push_back(slot.after);
  in.batch.uses.push_back({s.blocks[block], from, group, false});
  in.batch.slots.push_back(slot);
}

void StepStager::flush(Step& step, const SeqScratch& s, uint32_t layer, Incoming& in) {
  if (in.batch.transfer.segments.empty()) return;
  fire(step, in.moment, s, TransferPriority::kNeededNow, in.batch);
  step.firings.back().only_for = s.slice;
  step.waits.push_back({layer, s.slice, step.firings.back().transfer.id});
}

// What rows write into frames and is bound for a slower tier as well leaves when the group's last layer is
// written.
void StepStager::write_back_frames(Step& step, const SeqScratch& s, uint32_t layer) {
  const CacheGeometry& g = cache_.geometry();
  const uint32_t group = g.group_of(layer);
  if (layer + 1 < g.layers && g.group_of(layer + 1) == group) return;
  const Place to = {Form::kKv, cache_.options().slower_tier()};
  KvCache::Addition out;
  for (uint32_t b = 0; b < s.blocks.size(); ++b) {
    if (!s.to_slower[b].contains(group) || s.lacking[b].contains(group)) continue;
    cache_.move_cell(cache_.block(s.blocks[b]), group, kDeviceKv, to.tier, out);
    out.uses.push_back({s.blocks[b], kDeviceKv, group, false});
    out.uses.push_back({s.blocks[b], to, group, true});
  }
  if (out.transfer.segments.empty()) return;
  Batch batch{std::move(out.transfer), std::move(out.uses), {}};
  fire(step, layer_written(layer), s, TransferPriority::kOffload, batch);
}

void StepStager::fire(Step& step, StepMoment moment, const SeqScratch& s, TransferPriority priority,
                      Batch& batch) {
  sort_once(batch.transfer.after);
  sort_once(batch.transfer.needs);
  batch.transfer.id = cache_.begin_transfer(step.slices[s.slice].seq, batch.uses, /*cancellable=*/false);
  batch.transfer.priority = priority;
  for (const StageRing::Slot& slot : batch.slots) ring_.set_transfer(slot, batch.transfer.id);
  step.firings.push_back({moment, std::move(batch.transfer), Firing::kAnySlice});
  batch = {};
}

}  // namespace kvasir
