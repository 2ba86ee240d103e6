#include "cache/commit/committer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"

namespace kvasir {
namespace {

// So many seconds of a link are taken up by blocks that are saved. They hold memory of the device until they
// are there: on a slow link many of them would leave less of it to requests.
constexpr double kSaveAheadS = 0.05;

// The places of a list's entries, by sequence.
template <typename Entry>
std::vector<std::pair<SeqId, uint32_t>> by_seq(const std::vector<Entry>& list) {
  std::vector<std::pair<SeqId, uint32_t>> out;
  out.reserve(list.size());
  for (uint32_t i = 0; i < list.size(); ++i) out.emplace_back(list[i].seq, i);
  std::sort(out.begin(), out.end());
  return out;
}

// Those of one sequence, in the order of the list.
std::span<const std::pair<SeqId, uint32_t>> places_of(const std::vector<std::pair<SeqId, uint32_t>>& places,
                                                      SeqId seq) {
  return {std::lower_bound(places.begin(), places.end(), std::pair(seq, 0u)),
          std::upper_bound(places.begin(), places.end(), std::pair(seq, UINT32_MAX))};
}

}  // namespace

Committer::Committer(KvCache& cache, Link* link) : cache_(cache), link_(link), stager_(cache) {
  KV_CHECK(link || cache.options().tier_bytes(cache.options().slower_tier()) == 0,
           "a slower tier, but no link to it");
}

Step Committer::apply(const StepPlan& plan, StepId id) {
  cache_.begin_commit();
  for (const Failure& f : plan.failures) cache_.end_promises(f.seq);
  for (const Preemption& p : plan.preemptions) cache_.end_promises(p.seq);
  // First, so that adopted blocks are neither freed by sequences that give them up in this plan nor evicted.
  for (const Adoption& a : plan.adoptions) cache_.adopt(a.seq, a.tokens);
  drop_first(plan);
  for (const Promise& p : plan.promises) cache_.promise(p);
  // Before rows extend a block whose copy has not come yet.
  Projected projected;
  change_copies(plan, projected);
  for (const Rows& rows : plan.rows) {
    if (rows.kind != RowKind::kRestore) cache_.extend(rows.seq, rows.tokens.end, rows.writes, id);
  }

  Step step;
  step.id = id;
  step.groups = cache_.geometry().groups();
  step.hints = plan.hints;
  step.slices.reserve(plan.rows.size());
  for (const Rows& rows : plan.rows) add_slice(rows, step);
  const std::vector<SeqId> elsewhere = written_elsewhere(plan);
  std::optional<PlanBySeq> of_seq;  // sorted only if something is away
  std::vector<SeqScratch> scratch;
  for (uint32_t s = 0; s < step.slices.size(); ++s) {
    write_x(plan.rows[s], step, s);
    // What the restoring rows need is arranged with the rows that go on from the history.
    if (step.slices[s].kind == RowKind::kRestore) continue;
    wait_for_fills(step, s);
    const SeqId seq = step.slices[s].seq;
    if (!std::binary_search(elsewhere.begin(), elsewhere.end(), seq) && !lacks_frames(projected, seq))
      continue;
    if (!of_seq) of_seq = {by_seq(plan.copies), by_seq(plan.rows)};
    scratch.push_back(scratch_of(plan, *of_seq, projected, s, step));
  }
  stager_.stage(step, scratch);
  step.index_by_layer();
  if (!step.slices.empty()) cache_.step_submitted(id, step.slices);
  drop_last(plan);
  return step;
}

// ---------------------------------------------------------------- copies

// What can be used by the same plan.
void Committer::drop_first(const StepPlan& plan) {
  for (const CopyChange& c : plan.copies) {
    // Without its last copy it begins anew, and then holds nothing on the other tiers either.
    if (c.verb == Verb::kDropAll && !cache_.blocks_of(c.seq).empty()) cache_.drop_form(c.seq, c.form, c.tier);
  }
  for (const CopyChange& c : plan.copies) {
    if (c.verb == Verb::kDrop && c.trigger == Trigger::kWhenReady && c.tier != Tier::kDevice)
      cache_.release(c);
  }
}

void Committer::change_copies(const StepPlan& plan, Projected& projected) {
  for (const CopyChange& c : plan.copies) {
    if (c.verb != Verb::kAdd || c.trigger == Trigger::kAfterLayerWrites) continue;
    const bool stops = std::any_of(plan.preemptions.begin(), plan.preemptions.end(),
                                   [&](const Preemption& p) { return p.seq == c.seq; });
    KvCache::Additions added = cache_.add_copies(c, stops);
    start(std::move(added.transfers));
    if (c.trigger != Trigger::kBeforeLayer || added.projected.empty()) continue;
    auto& cells = projected[c.seq];
    cells.insert(cells.end(), added.projected.begin(), added.projected.end());
  }
}

// What this plan's rows may still read.
void Committer::drop_last(const StepPlan& plan) {
  for (const CopyChange& c : plan.copies) {
    if (c.verb != Verb::kDrop) continue;
    if (c.trigger == Trigger::kWhenReady) {
      if (c.tier == Tier::kDevice) cache_.release(c);
    } else {
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
  if (!link_) return;
  const LinkStats stats = link_->stats();
  KvCache::BytesByTier ahead;
  ahead.fill(UINT64_MAX);  // while the speed is not known
  const auto limit = [&](Tier tier, double bytes_per_s) {
    if (bytes_per_s > 0) ahead[index_of(tier)] = static_cast<uint64_t>(kSaveAheadS * bytes_per_s);
  };
  limit(Tier::kHost, stats.bytes_per_s);
  limit(Tier::kDisk, stats.disk_bytes_per_s);
  start(cache_.save_idle(ahead));
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
  slice.end_layer = std::min(rows.layers.count() * g.layers_per_group, g.layers);
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

void Committer::write_x(const Rows& rows, Step& step, uint32_t slice) {
  if (rows.writes.x.empty()) return;
  const CacheGeometry& g = cache_.geometry();
  const bool restores = rows.kind == RowKind::kRestore;
  const std::span<const BlockId> blocks = cache_.blocks_of(rows.seq);
  constexpr Place kDeviceX = {Form::kX, Tier::kDevice};
  for (uint32_t b = g.block_of(rows.tokens.begin); b < g.blocks_for(rows.tokens.end); ++b) {
    const BlockMap::Copies& copies = cache_.block(blocks[b]).at(kDeviceX);
    const BlockMap::Owner& owner = cache_.map().owner(blocks[b], cache_.holdings(rows.seq));
    const LayerSet held = owner.at(kDeviceX);
    rows.writes.x.for_each([&](uint32_t group) {
      if (restores) {
        if ((copies.present | owner.dead).contains(group)) return;
        step.x_writes.push_back({group, slice, b, cache_.begin_fill(rows.seq, b, kDeviceX, group)});
      } else if ((held & copies.current).contains(group)) {
        step.x_writes.push_back({group, slice, b, copies.by_group[group].at});
      }
    });
  }
}

// Copies that are still on their way to the device: the first layer of each group waits for those of the
// group.
void Committer::wait_for_fills(Step& step, uint32_t slice) {
  const StepSlice& s = step.slices[slice];
  if (cache_.holdings(s.seq).filling == 0) return;
  const CacheGeometry& g = cache_.geometry();
  std::vector<TransferWait> waits;
  for (BlockId id : cache_.blocks_of(s.seq)) {
    const BlockMap::Copies& device = cache_.block(id).at(kDeviceKv);
    const LayerSet& wanted = cache_.map().owner(id, cache_.holdings(s.seq)).at(kDeviceKv);
    for (const BlockMap::Filler& filler : device.fillers) {
      ((wanted - device.ready) & filler.groups).for_each([&](uint32_t group) {
        waits.push_back({group * g.layers_per_group, slice, filler.transfer});
      });
    }
  }
  std::sort(waits.begin(), waits.end(), [](const TransferWait& a, const TransferWait& b) {
    return std::pair(a.layer, a.transfer) < std::pair(b.layer, b.transfer);
  });
  waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
  step.waits.insert(step.waits.end(), waits.begin(), waits.end());
}

// Sequences whose rows write through to a slower tier, or restore dropped cells; sorted.
std::vector<SeqId> Committer::written_elsewhere(const StepPlan& plan) const {
  std::vector<SeqId> out;
  for (const CopyChange& c : plan.copies) {
    if (c.trigger == Trigger::kAfterLayerWrites) out.push_back(c.seq);
  }
  for (const Rows& r : plan.rows) {
    if (r.kind == RowKind::kRestore) out.push_back(r.seq);
  }
  std::sort(out.begin(), out.end());
  return out;
}

bool Committer::lacks_frames(const Projected& projected, SeqId seq) const {
  const Holdings& holds = cache_.holdings(seq);
  if (holds.on_device_or_dead() < cache_.blocks_of(seq).size() * cache_.geometry().groups()) return true;
  return projected.contains(seq);
}

SeqScratch Committer::scratch_of(const StepPlan& plan, const PlanBySeq& of_seq, const Projected& projected,
                                 uint32_t slice, const Step& step) {
  const CacheGeometry& g = cache_.geometry();
  const SeqId seq = step.slices[slice].seq;
  SeqScratch s;
  s.slice = slice;
  s.ids = cache_.blocks_of(seq);
  const Holdings& holds = cache_.holdings(seq);
  // A copy that the sequence does not hold may be gone, or may not have arrived, when the rows read it.
  uint32_t missing = static_cast<uint32_t>(s.ids.size()) * g.groups() - holds.on_device_or_dead();
  s.blocks.reserve(std::min<size_t>(missing, s.ids.size()));
  for (uint32_t b = 0; missing > 0; ++b) {
    const BlockMap::Owner& owner = cache_.map().owner(s.ids[b], holds);
    const LayerSet groups = cache_.map().all_groups() - owner.at(kDeviceKv) - owner.dead;
    if (groups.empty()) continue;
    s.at(b).missing = groups;
    missing -= groups.count();
  }
  for (const auto& [id, i] : places_of(of_seq.copies, seq)) {
    const CopyChange& c = plan.copies[i];
    if (c.verb == Verb::kStage) s.preferred = c.form;
    if (c.trigger != Trigger::kAfterLayerWrites) continue;
    for (const KvCache::Cell& cell : cache_.write_through(c)) s.at(cell.block).to_slower.add(cell.group);
  }
  const auto fill = [&](uint32_t number, uint32_t group) {
    SeqScratch::Block& b = s.at(number);
    if (!(b.missing - b.filled).contains(group)) return;
    b.frames.resize(g.groups());
    b.frames[group] = cache_.begin_fill(seq, number, kDeviceKv, group);
    b.filled.add(group);
  };
  for (const auto& [id, i] : places_of(of_seq.rows, seq)) {
    const Rows& rows = plan.rows[i];
    if (i != slice) s.others.push_back(i);
    const Interval whole = {ceil_div(rows.tokens.begin, g.block_tokens), rows.tokens.end / g.block_tokens};
    if (rows.kind != RowKind::kRestore) {
      for (SeqScratch::Block& b : s.blocks) b.fresh = b.fresh || whole.contains(b.block);
      continue;
    }
    for (uint32_t b = whole.begin; b < whole.end; ++b) {
      s.at(b).computed = rows.layers;
      rows.writes.kv.for_each([&](uint32_t group) { fill(b, group); });
    }
  }
  if (const std::vector<KvCache::Cell>* const cells = projected.find(seq)) {
    for (const KvCache::Cell& cell : *cells) {
      const BlockId id = s.ids[cell.block];
      const BlockMap::Owner& owner = cache_.map().owner(id, holds);
      LayerSet x;
      for (Tier tier : kAllTiers)
        x |= owner.at({Form::kX, tier}) & cache_.block(id).at({Form::kX, tier}).current;
      // There is nothing from which a dropped cell could be projected.
      if ((x - s.at(cell.block).computed).contains(cell.group)) fill(cell.block, cell.group);
    }
  }
  return s;
}

}  // namespace kvasir
