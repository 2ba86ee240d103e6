#include "cache/committer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"

namespace kvasir {

Committer::Committer(KvCache& cache, Link* link) : cache_(cache), link_(link), stager_(cache) {
  KV_CHECK(link || cache.options().tier_bytes(cache.options().slower_tier()) == 0,
           "a slower tier, but no link to it");
}

Step Committer::apply(const StepPlan& plan, StepId id) {
  for (const Failure& f : plan.failures) cache_.end_promises(f.seq);
  for (const Preemption& p : plan.preemptions) cache_.end_promises(p.seq);
  // What is adopted must not be freed by those who give it up in the same plan, nor be evicted.
  for (const Adoption& a : plan.adoptions) cache_.adopt(a.seq, a.tokens);
  drop_first(plan);
  for (const Promise& p : plan.promises) cache_.promise(p);
  // Before the rows write on in a block that is still to come.
  const Projected projected = change_copies(plan);
  for (const Rows& rows : plan.rows) {
    if (rows.tokens.end > cache_.ready_tokens(rows.seq)) {
      cache_.extend(rows.seq, rows.tokens.end, rows.writes, id);
    }
  }

  Step step;
  step.id = id;
  step.groups = cache_.geometry().groups();
  step.hints = plan.hints;
  step.slices.reserve(plan.rows.size());
  for (const Rows& rows : plan.rows) add_slice(rows, step);
  const std::unordered_set<SeqId> elsewhere = written_elsewhere(plan);
  std::vector<SeqScratch> scratch;
  for (uint32_t s = 0; s < step.slices.size(); ++s) {
    write_forms(plan.rows[s], step, s);
    // What a sequence computes again comes before the rows that go on from its history.
    if (cache_.computes_again(step.slices[s].seq, step.slices[s].tokens)) continue;
    wait_for_fills(step, s);
    if (elsewhere.contains(step.slices[s].seq) || lacks_frames(projected, step.slices[s].seq)) {
      scratch.push_back(scratch_of(plan, projected, s, step));
    }
  }
  stager_.stage(step, scratch);
  std::stable_sort(step.firings.begin(), step.firings.end(),
                   [](const Firing& a, const Firing& b) { return a.moment < b.moment; });
  std::stable_sort(step.waits.begin(), step.waits.end(),
                   [](const TransferWait& a, const TransferWait& b) { return a.layer < b.layer; });
  std::stable_sort(step.form_writes.begin(), step.form_writes.end(),
                   [](const FormWrite& a, const FormWrite& b) { return a.group < b.group; });
  if (!step.slices.empty()) cache_.step_submitted(id, step.slices);
  drop_last(plan);
  return step;
}

// ---------------------------------------------------------------- copies

// A sequence that does not run gives up all of a form on a tier: named beyond its history, since it may have
// to begin anew.
bool Committer::gives_up_all(const CopyChange& change) const {
  return change.verb == Verb::kDrop && change.trigger == Trigger::kNow &&
         change.tokens.end > cache_.ready_tokens(change.seq);
}

// What can be used by the same plan.
void Committer::drop_first(const StepPlan& plan) {
  // Giving up the last of its copies changes how much history a sequence has: judge before.
  std::vector<const CopyChange*> all;
  for (const CopyChange& c : plan.copies) {
    if (gives_up_all(c)) all.push_back(&c);
  }
  for (const CopyChange* c : all) {
    if (!cache_.blocks_of(c->seq).empty()) cache_.drop_form(c->seq, c->form, c->tier);
  }
  for (const CopyChange& c : plan.copies) {
    if (c.verb == Verb::kDrop && c.trigger == Trigger::kWhenReady && c.tier != Tier::kDevice) cache_.leave(c);
  }
}

Committer::Projected Committer::change_copies(const StepPlan& plan) {
  Projected projected;
  for (const CopyChange& c : plan.copies) {
    if (c.verb != Verb::kAdd || c.trigger == Trigger::kAfterLayerWrites) continue;
    // To the device comes all that there is; from a sequence that stops running goes its last block, too.
    const bool stops = std::any_of(plan.preemptions.begin(), plan.preemptions.end(),
                                   [&](const Preemption& p) { return p.seq == c.seq; });
    KvCache::Additions added = cache_.add_copies(c, /*tail=*/c.tier == Tier::kDevice || stops);
    start(std::move(added.transfers));
    if (c.trigger != Trigger::kBeforeLayer) continue;
    auto& cells = projected[c.seq];
    cells.insert(cells.end(), added.projected.begin(), added.projected.end());
  }
  return projected;
}

// What this plan's rows may still read.
void Committer::drop_last(const StepPlan& plan) {
  for (const CopyChange& c : plan.copies) {
    if (c.verb != Verb::kDrop) continue;
    if (c.trigger == Trigger::kWhenReady) {
      if (c.tier == Tier::kDevice) cache_.leave(c);
    } else if (!gives_up_all(c)) {
      cache_.drop(c);
    }
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
  for (const TransferDone& done : link_->completed()) cache_.transfer_ended(done.id, done.status);
}

void Committer::save_idle() {
  if (link_) start(cache_.save_idle());
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
  const CacheGeometry& g = cache_.geometry();
  uint32_t first_group = g.groups();
  uint32_t end_group = 0;
  rows.layers.for_each([&](uint32_t group) {
    first_group = std::min(first_group, group);
    end_group = group + 1;
  });
  slice.first_layer = first_group * g.layers_per_group;
  slice.end_layer = std::min(end_group * g.layers_per_group, g.layers);
  slice.samples = rows.samples;
  slice.first_token = static_cast<uint32_t>(step.token_ids.size());
  slice.blocks = g.blocks_for(rows.tokens.end);
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

void Committer::write_forms(const Rows& rows, Step& step, uint32_t slice) {
  const CacheGeometry& g = cache_.geometry();
  const bool again = cache_.computes_again(rows.seq, rows.tokens);
  const std::span<const BlockId> blocks = cache_.blocks_of(rows.seq);
  for (Form form : {Form::kX, Form::kH}) {
    const LayerSet& groups = form == Form::kX ? rows.writes.x : rows.writes.h;
    if (groups.empty()) continue;
    const Place place = {form, Tier::kDevice};
    for (uint32_t b = g.block_of(rows.tokens.begin); b < g.blocks_for(rows.tokens.end); ++b) {
      const BlockMap::Copies& copies = cache_.block(blocks[b]).at(place);
      const LayerSet held = cache_.map().owner(blocks[b], cache_.holdings(rows.seq)).at(place);
      groups.for_each([&](uint32_t group) {
        if (again) {
          if (copies.present.contains(group)) return;
          step.form_writes.push_back({group, slice, b, form, cache_.begin_fill(rows.seq, b, place, group)});
        } else if ((held & copies.current).contains(group)) {
          step.form_writes.push_back({group, slice, b, form, copies.by_group[group].at});
        }
      });
    }
  }
}

// Of copies that are still on their way to the device, each group's first layer waits for those of the group.
void Committer::wait_for_fills(Step& step, uint32_t slice) {
  const StepSlice& s = step.slices[slice];
  if (cache_.holdings(s.seq).filling == 0) return;
  const CacheGeometry& g = cache_.geometry();
  std::vector<TransferWait> waits;
  for (BlockId id : cache_.blocks_of(s.seq)) {
    const BlockMap::Copies& device = cache_.block(id).at(kDeviceKv);
    const LayerSet& wanted = cache_.map().owner(id, cache_.holdings(s.seq)).at(kDeviceKv);
    (wanted - device.ready).for_each([&](uint32_t group) {
      for (TransferId filler : device.by_group[group].fillers) {
        waits.push_back({group * g.layers_per_group, slice, filler});
      }
    });
  }
  std::sort(waits.begin(), waits.end(), [](const TransferWait& a, const TransferWait& b) {
    return std::pair(a.layer, a.transfer) < std::pair(b.layer, b.transfer);
  });
  waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
  step.waits.insert(step.waits.end(), waits.begin(), waits.end());
}

// Sequences of which rows write through to a slower tier, or compute dropped cells again.
std::unordered_set<SeqId> Committer::written_elsewhere(const StepPlan& plan) const {
  std::unordered_set<SeqId> out;
  for (const CopyChange& c : plan.copies) {
    if (c.trigger == Trigger::kAfterLayerWrites) out.insert(c.seq);
  }
  for (const Rows& r : plan.rows) {
    if (cache_.computes_again(r.seq, r.tokens)) out.insert(r.seq);
  }
  return out;
}

bool Committer::lacks_frames(const Projected& projected, SeqId seq) const {
  const Holdings& holds = cache_.holdings(seq);
  if (holds.at(kDeviceKv) < cache_.blocks_of(seq).size() * cache_.geometry().groups()) return true;
  const auto it = projected.find(seq);
  return it != projected.end() && !it->second.empty();
}

SeqScratch Committer::scratch_of(const StepPlan& plan, const Projected& projected, uint32_t slice,
                                 const Step& step) {
  const CacheGeometry& g = cache_.geometry();
  const SeqId seq = step.slices[slice].seq;
  SeqScratch s;
  s.slice = slice;
  s.blocks = cache_.blocks_of(seq);
  s.computed.resize(s.blocks.size());
  s.to_slower.resize(s.blocks.size());
  s.fresh.resize(s.blocks.size());
  s.filled.resize(s.blocks.size());
  for (const CopyChange& c : plan.copies) {
    if (c.seq != seq) continue;
    if (c.verb == Verb::kStage) s.preferred = c.form;
    if (c.trigger != Trigger::kAfterLayerWrites) continue;
    for (const KvCache::Cell& cell : cache_.write_through(c)) s.to_slower[cell.block].add(cell.group);
  }
  for (BlockId id : s.blocks) {
    // A copy that is there for somebody else may be gone, or not yet come, when the rows read it.
    s.lacking.push_back(cache_.map().all_groups() -
                        cache_.map().owner(id, cache_.holdings(seq)).at(kDeviceKv));
  }
  const auto fill = [&](uint32_t block, uint32_t group) {
    if (!s.lacking[block].contains(group) || s.fills(block, group)) return;
    if (s.filled[block].empty()) s.filled[block].assign(g.groups(), KvPlanes::kAbsent);
    s.filled[block][group] = cache_.begin_fill(seq, block, kDeviceKv, group);
  };
  for (uint32_t i = 0; i < step.slices.size(); ++i) {
    const Rows& rows = plan.rows[i];
    if (rows.seq != seq) continue;
    if (i != slice) s.others.push_back(i);
    const bool again = cache_.computes_again(seq, rows.tokens);
    for (uint32_t b = ceil_div(rows.tokens.begin, g.block_tokens); b < rows.tokens.end / g.block_tokens;
         ++b) {
      if (!again) {
        s.fresh[b] = true;
        continue;
      }
      s.computed[b] = rows.layers;
      rows.writes.kv.for_each([&](uint32_t group) { fill(b, group); });
    }
  }
  if (const auto it = projected.find(seq); it != projected.end()) {
    for (const KvCache::Cell& cell : it->second) {
      const BlockMap::Block& block = cache_.block(s.blocks[cell.block]);
      const BlockMap::Owner& o = cache_.map().owner(s.blocks[cell.block], cache_.holdings(seq));
      // A cell that was dropped has nothing to be projected.
      LayerSet x;
      for (Tier tier : kAllTiers) x |= o.at({Form::kX, tier}) & block.at({Form::kX, tier}).current;
      if ((x - s.computed[cell.block]).contains(cell.group)) fill(cell.block, cell.group);
    }
  }
  return s;
}

}  // namespace kvasir
