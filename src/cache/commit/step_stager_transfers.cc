// StepStager: the transfers of a step, built layer by layer.
#include <algorithm>
#include <utility>

#include "base/mutant.h"
#include "cache/commit/step_stager.h"

namespace kvasir {

void StepStager::bring(Step& step, Work& work, const Run& run, uint32_t entry, uint32_t layer,
                       const StageRing::Slots& slots) {
  const CacheGeometry& g = cache_.geometry();
  const Place from = run.from;
  const uint32_t group = g.group_of(layer);
  const uint64_t stride = g.piece_stride(from.form, from.tier);
  // Without overlap not before the layer before is done.
  const StepPoint earliest = step.hints.overlap || layer == 0 ? kStepBegins : layer_attended(layer - 1);
  const StepPoint start_at = std::max(slots.free_from, earliest);
  if (start_at != in_.start_at) flush(step, work, layer);
  in_.start_at = start_at;
  Transfer& transfer = in_.transfer;
  // A disk may turn out to have lost bytes, so each transfer from it names the copies that it reads.
  const bool shares = from.tier != Tier::kDisk;
  in_.shares_reads = in_.shares_reads || shares;
  const uint64_t in_cell = g.layer_in_group(layer) * stride, bytes = g.piece_bytes(from.form);
  if (run.even && shares && !run.filling) {
    const uint64_t first =
        run.first_frame + (entry - run.begin) * run.by_entry + group * run.by_group + in_cell;
    cache_.add_segments(transfer, {{first, from.tier}, run.by_entry},
                        {{slots.at.k, Tier::kDevice}, slots.bytes}, bytes, slots.count);
  } else {
    bring_each(work, run, entry, group, in_cell, slots);
  }
  // One transfer mostly fills many of the blocks.
  transfer.needs.erase(std::unique(transfer.needs.begin(), transfer.needs.end()), transfer.needs.end());
  if (slots.after != TransferId{}) transfer.after.push_back(slots.after);
  in_.slots.push_back(slots);
}

void StepStager::bring_each(const Work& work, const Run& run, uint32_t entry, uint32_t group,
                            uint64_t in_cell, const StageRing::Slots& slots) {
  const Place from = run.from;
  const CacheGeometry& g = cache_.geometry();
  for (uint32_t i = 0; i < slots.count; ++i) {
    const BlockMap::Copies& copies = source(run, entry + i);
    uint64_t source = copies.by_group[group].at + in_cell;
    if (mutant(Mutant::kDiskPlacesMixed) && from.tier == Tier::kDisk) {
      source -= std::min(source, g.piece_stride(from.form, from.tier));
    }
    cache_.add_segment(in_.transfer, {source, from.tier}, {slots.slot(i).k, Tier::kDevice},
                       g.piece_bytes(from.form));
    if (from.tier == Tier::kDisk) {
      in_.uses.push_back({block_of(work, entry + i), from, LayerSet::one(group), false});
    }
    if (run.filling) copies.append_fillers(group, in_.transfer.needs);
  }
}

void StepStager::flush(Step& step, Work& work, uint32_t layer) {
  if (in_.transfer.segments.empty()) return;
  add(step, work, TransferPriority::kNeededNow, in_);
  step.transfers.back().only_for = work.of->slice;
  step.waits.push_back({layer, work.of->slice, step.transfers.back().transfer.id});
}

// Rows write these cells into frames; a copy of them goes to the slower tier once the group's last layer is
// written.
void StepStager::write_back_frames(Step& step, Work& work, uint32_t layer) {
  const CacheGeometry& g = cache_.geometry();
  const SeqScratch& s = *work.of;
  const uint32_t group = g.group_of(layer);
  if (layer + 1 < g.layers && g.group_of(layer + 1) == group) return;
  const Place to = {Form::kKv, cache_.options().slower_tier()};
  KvCache::Addition out;
  for (const SeqScratch::Block& b : s.blocks) {
    if (!(b.to_slower - b.missing).contains(group)) continue;
    const BlockId id = s.ids[b.block];
    cache_.move_cell(cache_.block(id), group, kDeviceKv, to.tier, out);
    out.uses.push_back({id, kDeviceKv, LayerSet::one(group), false});
    out.uses.push_back({id, to, LayerSet::one(group), true});
  }
  if (out.transfer.segments.empty()) return;
  Batch batch;
  batch.start_at = layer_written(layer);
  batch.transfer = std::move(out.transfer);
  batch.uses = std::move(out.uses);
  add(step, work, TransferPriority::kOffload, batch);
}

// The copies on the host that transfers of any layer bring: one use for each run and block.
KvCache::SharedReads* StepStager::reads_of(const Work& work) {
  std::vector<KvCache::Use> uses;
  for (const Run& run : runs_of(work)) {
    if (!run.reads() || run.from.tier != Tier::kHost) continue;
    for (uint32_t entry = run.begin; entry < run.end; ++entry) {
      uses.push_back({block_of(work, entry), run.from, run.groups, false});
    }
  }
  return cache_.begin_reads(uses);
}

void StepStager::add(Step& step, Work& work, TransferPriority priority, Batch& batch) {
  Transfer& transfer = batch.transfer;
  sort_once(transfer.after);
  sort_once(transfer.needs);
  if (batch.shares_reads && !work.reads) work.reads = reads_of(work);
  transfer.id = cache_.begin_transfer(step.slices[work.of->slice].seq, batch.uses, /*cancellable=*/false,
                                      batch.shares_reads ? work.reads : nullptr);
  transfer.priority = priority;
  for (const StageRing::Slots& slots : batch.slots) ring_.set_transfer(slots, transfer.id);
  // A copy is as large as it has to be, and the batch keeps its memory.
  StepTransfer& out = step.transfers.emplace_back();
  out.start_at = batch.start_at;
  out.transfer = transfer;
  batch.clear();
}

void StepStager::Batch::clear() {
  transfer.after.clear();
  transfer.segments.clear();
  transfer.needs.clear();
  uses.clear();
  slots.clear();
  start_at = kStepBegins;
  shares_reads = false;
}

}  // namespace kvasir
