#include "cache/committer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"

namespace kvasir {
namespace {

constexpr size_t kDevice = index_of(Tier::kDevice);
constexpr size_t kHost = index_of(Tier::kHost);

// Adds a wait, unless it is the last one already.
void wait_once(Step& step, const TransferWait& wait) {
  if (step.waits.empty() || step.waits.back() != wait) step.waits.push_back(wait);
}

}  // namespace

Committer::Committer(KvCache& cache, Link* link)
    : cache_(cache),
      link_(link),
      ring_(cache.geometry(), cache.options().device_bytes, cache.options().stage_blocks()) {
  KV_CHECK(link || cache.options().host_bytes == 0, "a host tier of {} bytes, but no link to it",
           cache.options().host_bytes);
}

Step Committer::apply(const StepPlan& plan, StepId id) {
  for (const Failure& f : plan.failures) cache_.end_promises(f.seq);
  for (const Preemption& p : plan.preemptions) cache_.end_promises(p.seq);
  // What is adopted must not be freed by those who give it up in the same plan, nor be evicted.
  for (const Adoption& a : plan.adoptions) cache_.adopt(a.seq, a.tokens);
  for (const CopyChange& c : plan.copies) {
    // Either of the tiers stands for all that the sequence has.
    if (c.verb == Verb::kDrop && c.trigger == Trigger::kNow && !cache_.blocks_of(c.seq).empty()) {
      cache_.drop_all(c.seq);
    }
    if (c.verb == Verb::kDrop && c.trigger == Trigger::kWhenReady && c.tier == Tier::kHost) cache_.leave(c);
  }
  for (const Promise& p : plan.promises) cache_.promise(p.owner, p.tier, p.cells);
  for (const Rows& rows : plan.rows) cache_.extend(rows.seq, rows.tokens.end, rows.writes.kv, id);
  change_copies(plan);

  Step step;
  step.id = id;
  step.groups = cache_.geometry().groups();
  step.slices.reserve(plan.rows.size());
  for (const Rows& rows : plan.rows) add_slice(rows, step);
  std::vector<const CopyChange*> through;
  for (const CopyChange& c : plan.copies) {
    if (c.trigger == Trigger::kAfterLayerWrites) through.push_back(&c);
  }
  std::vector<Scratch> scratch;
  for (uint32_t s = 0; s < step.slices.size(); ++s) {
    wait_for_fills(step, s);
    if (needs_scratch(through, step.slices[s].seq)) scratch.push_back(scratch_of(through, step, s));
  }
  if (!scratch.empty()) ring_.begin_step();
  for (uint32_t layer = 0; !scratch.empty() && layer < cache_.geometry().layers; ++layer) {
    for (const Scratch& s : scratch) {
      stage_layer(step, s, layer);
      write_back_frames(step, s, layer);
    }
  }
  std::stable_sort(step.firings.begin(), step.firings.end(),
                   [](const Firing& a, const Firing& b) { return a.moment < b.moment; });
  std::stable_sort(step.waits.begin(), step.waits.end(),
                   [](const TransferWait& a, const TransferWait& b) { return a.layer < b.layer; });
  if (!step.slices.empty()) cache_.step_submitted(id, step.slices);
  for (const CopyChange& c : plan.copies) {
    if (c.verb == Verb::kDrop && c.trigger == Trigger::kWhenReady && c.tier == Tier::kDevice) cache_.leave(c);
  }
  return step;
}

// ---------------------------------------------------------------- copies

void Committer::change_copies(const StepPlan& plan) {
  for (const CopyChange& c : plan.copies) {
    if (c.verb != Verb::kAdd || c.trigger == Trigger::kAfterLayerWrites) continue;
    // To the device comes all that there is; from a sequence that stops running goes its last block, too.
    const bool stops = std::any_of(plan.preemptions.begin(), plan.preemptions.end(),
                                   [&](const Preemption& p) { return p.seq == c.seq; });
    start(cache_.add_copies(c, /*tail=*/c.tier == Tier::kDevice || stops));
  }
}

void Committer::start(std::vector<Transfer> transfers) {
  for (Transfer& t : transfers) link_->start(std::move(t));
}

std::vector<SeqId> Committer::step_ended(const StepResult& result) {
  KvCache::StepOutcome outcome = cache_.step_ended(result.id, result.status.ok(), result.deferred);
  start(std::move(outcome.transfers));
  return std::move(outcome.void_rows);
}

void Committer::drain_transfers() {
  if (!link_) return;
  for (TransferId id : cache_.take_cancelled()) link_->cancel(id);
  for (const TransferDone& done : link_->completed()) cache_.transfer_ended(done.id, done.status.ok());
}

// ---------------------------------------------------------------- rows

void Committer::add_slice(const Rows& rows, Step& step) {
  StepSlice slice;
  slice.seq = rows.seq;
  slice.tokens = rows.tokens;
  if (mutant(Mutant::kResumeSkipsToken) && rows.tokens.size() > 1 && cache_.was_dropped(rows.seq)) {
    ++slice.tokens.begin;
  }
  slice.kind = rows.kind;
  slice.end_layer = cache_.geometry().layers;
  slice.samples = rows.samples;
  slice.first_token = static_cast<uint32_t>(step.token_ids.size());
  slice.blocks = cache_.geometry().blocks_for(rows.tokens.end);
  slice.table = cache_.table(rows.seq);

  const std::span<const Token> tokens = cache_.tokens(rows.seq);
  for (uint32_t p = slice.tokens.begin; p < rows.tokens.end; ++p) {
    // Only the newest token can be unknown still: a step in flight is sampling it.
    KV_CHECK(p < tokens.size() || p + 1 == rows.tokens.end, "seq={} position={} of {} tokens", raw(rows.seq),
             p, tokens.size());
    slice.last_token_by_reference = p >= tokens.size();
    step.token_ids.push_back(p < tokens.size() ? tokens[p] : -1);
  }
  step.slices.push_back(std::move(slice));
}

// Of copies that are still on their way to the device, each group's first layer waits for those of the group.
void Committer::wait_for_fills(Step& step, uint32_t slice) {
  const StepSlice& s = step.slices[slice];
  if (cache_.holdings(s.seq).filling == 0) return;
  const CacheGeometry& g = cache_.geometry();
  std::vector<TransferWait> waits;
  for (BlockId id : cache_.blocks_of(s.seq)) {
    const BlockMap::Copies& device = cache_.block(id).on[kDevice];
    const LayerSet& wanted = cache_.map().owner(id, cache_.holdings(s.seq)).wants[kDevice];
    (wanted - device.ready).for_each([&](uint32_t group) {
      for (TransferId filler : device.by_group[group].fillers) {
        waits.push_back({group * g.layers_per_group, slice, filler});
      }
    });
  }
  std::sort(waits.begin(), waits.end(), [](const TransferWait& a, const TransferWait& b) {
    return std::pair(a.layer, a.transfer) < std::pair(b.layer, b.transfer);
  });
  for (const TransferWait& w : waits) wait_once(step, w);
}

bool Committer::needs_scratch(const std::vector<const CopyChange*>& through, SeqId seq) const {
  const Holdings& holds = cache_.holdings(seq);
  if (holds.cells[kDevice] < cache_.blocks_of(seq).size() * cache_.geometry().groups()) return true;
  return std::any_of(through.begin(), through.end(), [&](const CopyChange* c) { return c->seq == seq; });
}

Committer::Scratch Committer::scratch_of(const std::vector<const CopyChange*>& through, Step& step,
                                         uint32_t slice) {
  StepSlice& s = step.slices[slice];
  Scratch scratch;
  scratch.slice = slice;
  scratch.blocks = cache_.blocks_of(s.seq);
  scratch.from_rows.resize(scratch.blocks.size());
  scratch.from_frames.resize(scratch.blocks.size());
  for (const CopyChange* c : through) {
    if (c->seq != s.seq) continue;
    for (const KvCache::WriteThrough& w : cache_.write_through(*c)) {
      (w.from_ring ? scratch.from_rows : scratch.from_frames)[w.block].add(w.group);
    }
  }
  bool anything = false;
  for (BlockId id : scratch.blocks) {
    // A copy that is there for somebody else may be gone, or not yet come, when the rows read it.
    scratch.lacking.push_back(cache_.map().all_groups() -
                              cache_.map().owner(id, cache_.holdings(s.seq)).wants[kDevice]);
    anything |= !scratch.lacking.back().empty();
  }
  if (anything) {
    s.first_staged = static_cast<uint32_t>(step.staged.size());
    step.staged.resize(step.staged.size() + size_t{cache_.geometry().layers} * s.blocks);
  }
  return scratch;
}

// ---------------------------------------------------------------- the stage ring

// Gives the layer's cells that have no frame a place in the ring: the history's come from the host before the
// layer, those that the rows write go there after.
void Committer::stage_layer(Step& step, const Scratch& scratch, uint32_t layer) {
  const CacheGeometry& g = cache_.geometry();
  const StepSlice& slice = step.slices[scratch.slice];
  const uint32_t group = g.group_of(layer);
  const uint64_t offset = g.layer_in_group(layer) * g.layer_plane_bytes();
  const uint64_t bytes = g.layer_plane_bytes();
  Transfer in, out;
  std::vector<KvCache::Use> in_uses, out_uses;
  std::vector<StageRing::Slot> in_slots, out_slots;
  StepMoment moment = kStepBegins;
  const auto flush_in = [&] {
    if (in.segments.empty()) return;
    fire(step, moment, scratch, TransferPriority::kNeededNow, in_uses, in);
    step.firings.back().only_for = scratch.slice;
    for (const StageRing::Slot& slot : in_slots) ring_.set_transfer(slot, step.firings.back().transfer.id);
    step.waits.push_back({layer, scratch.slice, step.firings.back().transfer.id});
    in_slots.clear();
  };
  for (uint32_t b = 0; b < slice.blocks; ++b) {
    if (!scratch.lacking[b].contains(group)) continue;
    const StageRing::Slot slot = ring_.take(layer);
    step.staged[slice.first_staged + layer * slice.blocks + b] = slot.at;
    const BlockMap::Copies& host = cache_.block(scratch.blocks[b]).on[kHost];
    KV_CHECK(host.present.contains(group), "seq={} block={} group={} is on no tier", raw(slice.seq), b,
             group);
    const BlockMap::Copy& copy = host.by_group[group];
    const bool taken = cache_.in_flight(slot.after);
    if (scratch.from_rows[b].contains(group)) {
      out.segments.push_back({{slot.at.k, Tier::kDevice}, {copy.at.k + offset, Tier::kHost}, bytes});
      out.segments.push_back({{slot.at.v, Tier::kDevice}, {copy.at.v + offset, Tier::kHost}, bytes});
      out_uses.push_back({scratch.blocks[b], Tier::kHost, group, true});
      out_slots.push_back(slot);
      if (taken) {
        wait_once(step, {layer, scratch.slice, slot.after});
        // Also where the rows leave the step because they waited for it in vain: whoever has the slot next
        // comes after this transfer, and so after that one.
        out.after.push_back(slot.after);
      }
      continue;
    }
    if (slot.free_from != moment) flush_in();
    moment = slot.free_from;
    in.segments.push_back({{copy.at.k + offset, Tier::kHost}, {slot.at.k, Tier::kDevice}, bytes});
    in.segments.push_back({{copy.at.v + offset, Tier::kHost}, {slot.at.v, Tier::kDevice}, bytes});
    in.needs.insert(in.needs.end(), copy.fillers.begin(), copy.fillers.end());
    if (taken) in.after.push_back(slot.after);
    in_uses.push_back({scratch.blocks[b], Tier::kHost, group, false});
    in_slots.push_back(slot);
  }
  flush_in();
  if (!out.segments.empty()) {
    // Before what merely leaves: the ring's next user waits for it.
    fire(step, layer_written(layer), scratch, TransferPriority::kPrefetch, out_uses, out);
    for (const StageRing::Slot& slot : out_slots) ring_.set_transfer(slot, step.firings.back().transfer.id);
  }
  const auto comes_from_host = [&](uint32_t b) {
    return scratch.lacking[b].contains(group) && !scratch.from_rows[b].contains(group);
  };
  if (mutant(Mutant::kStagedWrongBlock) && slice.blocks > 1 && layer == 1 && comes_from_host(0) &&
      comes_from_host(1)) {
    auto first = step.staged.begin() + slice.first_staged + layer * slice.blocks;
    std::swap(first[0], first[1]);
  }
}

// What rows write into frames and is bound for the host as well leaves when the group's last layer is
// written.
void Committer::write_back_frames(Step& step, const Scratch& scratch, uint32_t layer) {
  const CacheGeometry& g = cache_.geometry();
  const uint32_t group = g.group_of(layer);
  if (layer + 1 < g.layers && g.group_of(layer + 1) == group) return;
  const uint64_t bytes = g.frame_bytes(FrameClass::kKvPlane);
  Transfer out;
  std::vector<KvCache::Use> uses;
  for (uint32_t b = 0; b < scratch.blocks.size(); ++b) {
    if (!scratch.from_frames[b].contains(group)) continue;
    const BlockMap::Block& block = cache_.block(scratch.blocks[b]);
    const KvPlanes& from = block.on[kDevice].by_group[group].at;
    const KvPlanes& to = block.on[kHost].by_group[group].at;
    out.segments.push_back({{from.k, Tier::kDevice}, {to.k, Tier::kHost}, bytes});
    out.segments.push_back({{from.v, Tier::kDevice}, {to.v, Tier::kHost}, bytes});
    uses.push_back({scratch.blocks[b], Tier::kDevice, group, false});
    uses.push_back({scratch.blocks[b], Tier::kHost, group, true});
  }
  if (!out.segments.empty()) fire(step, layer_written(layer), scratch, TransferPriority::kOffload, uses, out);
}

void Committer::fire(Step& step, StepMoment moment, const Scratch& scratch, TransferPriority priority,
                     std::vector<KvCache::Use>& uses, Transfer& transfer) {
  sort_once(transfer.after);
  sort_once(transfer.needs);
  transfer.id = cache_.begin_transfer(step.slices[scratch.slice].seq, uses, /*cancellable=*/false);
  transfer.priority = priority;
  step.firings.push_back({moment, std::exchange(transfer, {}), Firing::kAnySlice});
  uses.clear();
}

}  // namespace kvasir
