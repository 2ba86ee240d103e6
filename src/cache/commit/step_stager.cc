#include "cache/commit/step_stager.h"

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

// From the first block that needs a place in the step to the last one.
Interval blocks_with_places(const SeqScratch& s) {
  const auto needs_place = [](const SeqScratch::Block& b) { return b.needs_place(); };
  const auto first = std::find_if(s.blocks.begin(), s.blocks.end(), needs_place);
  if (first == s.blocks.end()) return {};
  const auto last = std::find_if(s.blocks.rbegin(), s.blocks.rend(), needs_place);
  return {first->block, last->block + 1};
}

}  // namespace

SeqScratch::Block& SeqScratch::at(uint32_t block) {
  auto it = blocks.end();
  if (!blocks.empty() && blocks.back().block >= block) {
    it = std::lower_bound(blocks.begin(), blocks.end(), block,
                          [](const Block& b, uint32_t number) { return b.block < number; });
    if (it->block == block) return *it;
  }
  it = blocks.emplace(it);
  it->block = block;
  return *it;
}

StepStager::StepStager(KvCache& cache)
    : cache_(cache), ring_(cache.geometry(), cache.options().device_bytes, cache.options().stage_blocks()) {}

void StepStager::stage(Step& step, std::span<const SeqScratch> sequences) {
  if (sequences.empty()) return;
  plan(step, sequences);
  ring_.begin_step([&](TransferId id) { return cache_.in_flight(id); });
  for (uint32_t layer = 0; layer < cache_.geometry().layers; ++layer) {
    for (Work& work : works_) {
      stage_layer(step, work, layer);
      if (work.writes_back) write_back_frames(step, work, layer);
    }
  }
  works_.clear();
}

// All slices of a sequence read, and write, at the same places.
void StepStager::share_table(Step& step, const SeqScratch& s) const {
  const Interval blocks = blocks_with_places(s);
  if (blocks.empty()) return;
  StepSlice& slice = step.slices[s.slice];
  step.add_staged(slice, blocks, cache_.geometry().layers);
  for (uint32_t other : s.others) {
    step.slices[other].staged_blocks = slice.staged_blocks;
    step.slices[other].first_staged = slice.first_staged;
  }
}

// ---------------------------------------------------------------- runs of cells

void StepStager::plan(Step& step, std::span<const SeqScratch> sequences) {
  runs_.clear();
  sources_.clear();
  size_t places = 0;
  for (const SeqScratch& s : sequences) places += blocks_with_places(s).size();
  step.staged.reserve(places * cache_.geometry().layers);
  bool fills_change = false;  // transfers of this step fill copies that it might read
  for (const SeqScratch& s : sequences) {
    share_table(step, s);
    Work& work = works_.emplace_back();
    work.of = &s;
    work.first_run = static_cast<uint32_t>(runs_.size());
    plan(step, work);
    work.end_run = static_cast<uint32_t>(runs_.size());
    for (const SeqScratch::Block& b : s.blocks) {
      fills_change = fills_change || !b.to_slower.empty();
      work.writes_back = work.writes_back || !(b.to_slower - b.missing).empty();
    }
  }
  for (const Work& work : works_) find_sources(work, fills_change);
  // Mostly a transfer in each layer of a sequence that reads.
  const auto reading = std::count_if(works_.begin(), works_.end(), [&](const Work& work) {
    const std::span<const Run> runs = runs_of(work);
    return std::any_of(runs.begin(), runs.end(), [](const Run& run) { return run.way == Way::kTransfer; });
  });
  step.transfers.reserve(static_cast<size_t>(reading) * cache_.geometry().layers);
  step.waits.reserve(static_cast<size_t>(reading) * cache_.geometry().layers);
}

void StepStager::find_sources(const Work& work, bool fills_change) {
  for (uint32_t i = work.first_run; i < work.end_run; ++i) {
    Run& run = runs_[i];
    if (!run.reads()) continue;
    run.first_source = static_cast<uint32_t>(sources_.size());
    run.filling = fills_change;
    for (uint32_t entry = run.begin; entry < run.end; ++entry) {
      sources_.push_back(&copies_of(*work.of, entry, run.from));
      run.filling = run.filling || !sources_.back()->fillers.empty();
    }
    find_distances(run);
  }
}

void StepStager::find_distances(Run& run) const {
  std::optional<BlockFrames::Row> before;
  run.even = true;
  for (uint32_t entry = run.begin; entry < run.end && run.even; ++entry) {
    const std::optional<BlockFrames::Row> row = source(run, entry).by_group.row();
    run.even = row.has_value();
    if (entry == run.begin && row) {
      run.first_frame = row->first;
      run.by_group = row->distance;
    } else if (row) {
      const uint64_t by_entry = row->first - before->first;
      if (entry == run.begin + 1) run.by_entry = by_entry;
      run.even = by_entry == run.by_entry && row->distance == run.by_group;
    }
    before = row;
  }
}

void StepStager::plan(const Step& step, Work& work) {
  const uint32_t per_leaf = cache_.geometry().blocks_per_leaf();
  const SeqScratch& s = *work.of;
  LayerSet peers;
  uint32_t leaf = UINT32_MAX;
  for (uint32_t entry = 0; entry < s.blocks.size(); ++entry) {
    const SeqScratch::Block& b = s.blocks[entry];
    if (b.block / per_leaf != leaf) {
      leaf = b.block / per_leaf;
      peers = at_peers(step, s, entry);
    }
    const LayerSet written = b.computed | (b.fresh ? b.missing : LayerSet());
    const LayerSet slots = written - b.filled;
    add_run(work, entry, written & b.filled, Way::kRowsFillFrame);
    add_run(work, entry, slots & b.to_slower, Way::kRowsSendSlot);
    add_run(work, entry, slots - b.to_slower, Way::kRowsFillSlot);
    add_run(work, entry, peers, Way::kStayAtPeers);
    plan_reads(step, entry, b.missing - written - peers, work);
  }
}

void StepStager::add_run(const Work& work, uint32_t entry, const LayerSet& groups, Way way, Place from) {
  if (groups.empty()) return;
  // Of one block there are no more runs than this.
  const size_t recent = std::min<size_t>(runs_.size() - work.first_run, 4 + 2 * kPlaces);
  for (auto run = runs_.rbegin(); run != runs_.rbegin() + static_cast<ptrdiff_t>(recent); ++run) {
    if (run->end == entry && run->groups == groups && run->way == way && run->from == from) {
      ++run->end;
      run->follow &= work.of->blocks[entry].block == work.of->blocks[entry - 1].block + 1;
      return;
    }
  }
  runs_.push_back({entry, entry + 1, groups, way, from});
}

// Finds a copy to read for each of the groups of a block.
void StepStager::plan_reads(const Step& step, uint32_t entry, LayerSet groups, const Work& work) {
  if (groups.empty()) return;
  const SeqScratch& s = *work.of;
  const SeqScratch::Block& block = s.blocks[entry];
  const BlockId id = s.ids[block.block];
  const BlockMap::Block& b = cache_.block(id);
  const BlockMap::Owner& owner = cache_.map().owner(id, cache_.holdings(step.slices[s.slice].seq));
  for (bool ready : {true, false}) {
    for (bool preferred : {true, false}) {
      for (const Place& from : kCheapestFirst) {
        if (from == kDeviceKv || (from.form == s.preferred) != preferred) continue;
        const BlockMap::Copies& copies = b.at(from);
        const LayerSet there = ready ? copies.usable() : copies.present & copies.current;
        LayerSet read = groups & there & owner.at(from);
        // A frame that becomes KV is filled from X: KV would have been copied.
        if (from.form == Form::kKv) read = read - block.filled;
        groups = groups - read;
        const bool projected = from.form == Form::kX;
        add_run(work, entry, read & block.filled, Way::kProjectIntoFrame, from);
        add_run(work, entry, read - block.filled, projected ? Way::kProjectIntoSlot : Way::kTransfer, from);
        if (groups.empty()) return;
      }
    }
  }
  KV_CHECK(false, "seq={} block={}: a layer group is nowhere", raw(step.slices[s.slice].seq), block.block);
}

// `entry` is of the leaf's first block, if the leaf is attended at peers.
LayerSet StepStager::at_peers(const Step& step, const SeqScratch& s, uint32_t entry) const {
  if (!cache_.options().has_peers_cells() || !s.others.empty()) return {};
  const StepSlice& slice = step.slices[s.slice];
  const uint32_t per_leaf = cache_.geometry().blocks_per_leaf();
  const uint32_t first = s.blocks[entry].block;
  const uint32_t leaf = first / per_leaf;
  // Every row sees all of such a leaf.
  if (leaf >= slice.tokens.begin / kLeafTokens || entry + per_leaf > s.blocks.size()) return {};
  LayerSet groups = cache_.map().all_groups();
  for (uint32_t i = 0; i < per_leaf; ++i) {
    const SeqScratch::Block& b = s.blocks[entry + i];
    if (b.block != leaf * per_leaf + i || b.fresh) return {};
    groups = groups & (b.missing - b.computed - b.filled);
  }
  LayerSet out;
  const Holdings& holdings = cache_.holdings(slice.seq);
  groups.for_each([&](uint32_t group) {
    if (cache_.lies_at_peers(holdings, s.ids, leaf, group)) out.add(group);
  });
  return out;
}

// ---------------------------------------------------------------- a layer

void StepStager::stage_layer(Step& step, Work& work, uint32_t layer) {
  const SeqScratch& s = *work.of;
  const uint32_t group = cache_.geometry().group_of(layer);
  leave_at_peers(step, work, layer);
  for (const Run& run : runs_of(work)) {
    if (!run.groups.contains(group)) continue;
    switch (run.way) {
      case Way::kRowsFillFrame:
        fill_frames(step, s, run, layer);
        break;
      case Way::kRowsFillSlot:
      case Way::kRowsSendSlot:
        fill_slots(step, s, run, layer);
        break;
      case Way::kTransfer:
        bring_into_slots(step, work, run, layer);
        break;
      case Way::kProjectIntoSlot:
      case Way::kProjectIntoFrame:
        project(step, work, run, layer);
        break;
      case Way::kStayAtPeers:
        break;
    }
  }
  flush(step, work, layer);
  // Before what merely leaves: the ring's next user waits for it.
  out_.start_at = layer_written(layer);
  if (!out_.uses.empty()) add(step, work, TransferPriority::kPrefetch, out_);
  if (mutant(Mutant::kStagedWrongBlock) && layer == 1 && s.blocks.size() > 1) {
    const auto comes = [&](uint32_t b) {
      const SeqScratch::Block& block = s.blocks[b];
      return block.block == b && (block.missing - block.computed).contains(group) && !block.fresh;
    };
    const StepSlice& slice = step.slices[s.slice];
    if (comes(0) && comes(1)) {
      std::swap(step.staged_planes(slice, 0, layer), step.staged_planes(slice, 1, layer));
    }
  }
}

void StepStager::leave_at_peers(Step& step, const Work& work, uint32_t layer) {
  if (!cache_.options().has_peers_cells()) return;
  const CacheGeometry& g = cache_.geometry();
  const SeqScratch& s = *work.of;
  const uint32_t group = g.group_of(layer);
  const Place place = {Form::kKv, Tier::kHost};
  std::vector<KvCache::Use> uses;
  std::vector<TransferId> fillers;
  for (const Run& run : runs_of(work)) {
    if (run.way != Way::kStayAtPeers || !run.groups.contains(group)) continue;
    for (uint32_t entry = run.begin; entry < run.end; ++entry) {
      const uint32_t block = s.blocks[entry].block;
      const uint32_t leaf = block / g.blocks_per_leaf();
      const bool goes_on = !step.remote.empty() && step.remote.back().layer == layer &&
                           step.remote.back().slice == s.slice && step.remote.back().end_leaf >= leaf;
      if (goes_on) {
        step.remote.back().end_leaf = leaf + 1;
      } else {
        const auto first_piece = static_cast<uint32_t>(step.remote_pieces.size());
        step.remote.push_back({layer, s.slice, leaf, leaf + 1, first_piece});
      }
      const BlockFrames::Frame copy = copy_of(s, entry, place, group);
      step.remote_pieces.push_back(copy.at - cache_.options().borrowed_begin() +
                                   g.layer_in_group(layer) * g.piece_bytes(Form::kKv));
      if (!mutant(Mutant::kRemoteFillSkipped)) {
        copies_of(s, entry, place).append_fillers(group, fillers);
      }
      if (g.layer_in_group(layer) == 0) uses.push_back({s.ids[block], place, LayerSet::one(group), false});
    }
  }
  sort_once(fillers);
  for (TransferId filler : fillers) step.waits.push_back({layer, s.slice, filler});
  if (!uses.empty()) cache_.begin_read(std::move(uses));
}

KvPlanes StepStager::frame_of(const SeqScratch::Block& block, uint32_t layer) const {
  const CacheGeometry& g = cache_.geometry();
  const uint64_t k = block.frames[g.group_of(layer)] + g.layer_in_group(layer) * g.piece_bytes(Form::kKv);
  return {k, k + g.v_offset()};
}

void StepStager::fill_frames(Step& step, const SeqScratch& s, const Run& run, uint32_t layer) const {
  for (uint32_t entry = run.begin; entry < run.end; ++entry) {
    const SeqScratch::Block& b = s.blocks[entry];
    step.staged_planes(step.slices[s.slice], b.block, layer) = frame_of(b, layer);
  }
}

void StepStager::fill_slots(Step& step, const SeqScratch& s, const Run& run, uint32_t layer) {
  const CacheGeometry& g = cache_.geometry();
  const uint32_t group = g.group_of(layer);
  const Place to = {Form::kKv, cache_.options().slower_tier()};
  for (uint32_t entry = run.begin; entry < run.end;) {
    const StageRing::Slots slots = ring_.take(layer, run.end - entry);
    const bool taken = slots.after != TransferId{};
    if (taken) wait_once(step, {layer, s.slice, slots.after, /*any_end=*/true});
    for (uint32_t i = 0; i < slots.count; ++i) {
      const uint32_t block = s.blocks[entry + i].block;
      step.staged_planes(step.slices[s.slice], block, layer) = slots.slot(i);
      if (run.way != Way::kRowsSendSlot) continue;
      const uint64_t target =
          copy_of(s, entry + i, to, group).at + g.layer_in_group(layer) * g.piece_stride(to.form, to.tier);
      cache_.add_segment(out_.transfer, {slots.slot(i).k, Tier::kDevice}, {target, to.tier},
                         g.piece_bytes(to.form));
      out_.uses.push_back({s.ids[block], to, LayerSet::one(group), true});
    }
    entry += slots.count;
    if (run.way != Way::kRowsSendSlot) continue;
    out_.slots.push_back(slots);
    // Even if the rows leave the step because this one did not end in time: a later user of the slots then
    // waits for our transfer, and so for this one.
    if (taken) out_.transfer.after.push_back(slots.after);
  }
}

void StepStager::place(Step& step, const SeqScratch& s, const Run& run, uint32_t entry, uint32_t layer,
                       const StageRing::Slots& slots) const {
  const StepSlice& slice = step.slices[s.slice];
  if (!run.follow) {
    for (uint32_t i = 0; i < slots.count; ++i) {
      step.staged_planes(slice, s.blocks[entry + i].block, layer) = slots.slot(i);
    }
    return;
  }
  KvPlanes* const planes = &step.staged_planes(slice, s.blocks[entry].block, layer);
  for (uint32_t i = 0; i < slots.count; ++i) planes[i] = slots.slot(i);
}

void StepStager::bring_into_slots(Step& step, Work& work, const Run& run, uint32_t layer) {
  const SeqScratch& s = *work.of;
  for (uint32_t entry = run.begin; entry < run.end;) {
    const StageRing::Slots slots = ring_.take(layer, run.end - entry);
    place(step, s, run, entry, layer, slots);
    bring(step, work, run, entry, layer, slots);
    entry += slots.count;
  }
}

void StepStager::project(Step& step, Work& work, const Run& run, uint32_t layer) {
  const CacheGeometry& g = cache_.geometry();
  const SeqScratch& s = *work.of;
  const uint32_t group = g.group_of(layer);
  for (uint32_t entry = run.begin; entry < run.end; ++entry) {
    const SeqScratch::Block& b = s.blocks[entry];
    KvPlanes& to = step.staged_planes(step.slices[s.slice], b.block, layer);
    if (run.way == Way::kProjectIntoFrame) {
      to = frame_of(b, layer);
    } else {
      const StageRing::Slots slot = ring_.take(layer, 1);
      to = slot.at;
      if (slot.after != TransferId{}) wait_once(step, {layer, s.slice, slot.after, /*any_end=*/true});
    }
    const BlockMap::Copies& copies = source(run, entry);
    uint64_t x = copies.by_group[group].at + g.layer_in_group(layer) * g.piece_bytes(Form::kX);
    if (run.from.tier == Tier::kDevice) {
      std::vector<TransferId> fillers;
      copies.append_fillers(group, fillers);
      for (TransferId filler : fillers) wait_once(step, {layer, s.slice, filler});
    } else {
      const StageRing::Slots slot = ring_.take(layer, 1);
      bring(step, work, run, entry, layer, slot);
      x = slot.at.k;
    }
    const uint32_t first_position = mutant(Mutant::kProjectedAtOrigin) ? 0 : b.block * g.block_tokens;
    step.projections.push_back({layer, s.slice, first_position, cache_.block(s.ids[b.block]).tokens, x, to});
  }
}

}  // namespace kvasir
