#include "plan/plan_builder.h"

#include <algorithm>
#include <utility>

#include "plan/plan_trial.h"

namespace kvasir {

PlanBuilder::PlanBuilder(const View& view)
    : view_(view),
      groups_(view.geometry.groups()),
      all_layers_(LayerSet::all(groups_)),
      slower_(view.slower_tier()),
      state_(view),
      decodes_run_(std::any_of(view.running.begin(), view.running.end(),
                               [](const SeqView& s) { return s.decoding(); })) {}

PlanState::Seq& PlanBuilder::movable(const SeqView& seq) {
  PlanState::Seq& s = state_.seq(seq);
  KV_CHECK(!s.has_rows && !s.stopped, "seq={}", raw(seq.id));
  return s;
}

// ---------------------------------------------------------------- entries

namespace {

template <typename Entry>
void apply(PlanState& state, const StepPlan& plan, std::vector<Entry>& list, Entry entry) {
  const Status status = state.apply(entry);
  KV_CHECK(status.ok(), "{}, behind\n{}", status.message(), to_string(plan));
  list.push_back(std::move(entry));
}

}  // namespace

void PlanBuilder::add(Failure failure) {
  apply(state_, plan_, plan_.failures, std::move(failure));
}
void PlanBuilder::add(Preemption preemption) {
  apply(state_, plan_, plan_.preemptions, preemption);
}
void PlanBuilder::add(Adoption adoption) {
  apply(state_, plan_, plan_.adoptions, adoption);
}
void PlanBuilder::add(CopyChange change) {
  apply(state_, plan_, plan_.copies, change);
}
void PlanBuilder::add(Promise promise) {
  apply(state_, plan_, plan_.promises, promise);
}
void PlanBuilder::add(Rows rows) {
  apply(state_, plan_, plan_.rows, std::move(rows));
}

// ---------------------------------------------------------------- admission

KvPlacement PlanBuilder::kv_placement(const SeqView& seq) const {
  return kv_placement_of(view_, seq);
}

uint32_t PlanBuilder::slower_cells_to_come(const SeqView& seq) const {
  return kvasir::slower_cells_to_come(view_, seq);
}

bool PlanBuilder::admit(const SeqView& seq, const AdmitOptions& options) {
  KV_CHECK(options.x.empty() || (options.kv && (*options.kv & options.x).empty()), "seq={}", raw(seq.id));
  if (running_seqs() >= view_.limits.max_num_seqs) return false;
  // A promise without rows would keep cells from other sequences for no benefit.
  if (seq.stalled || seq.tail_busy || (!seq.decoding() && prefill_room() == 0)) return false;
  const PlanState::Seq& s = movable(seq);
  if (seq.blocks > 0) return admit(seq, Admission::of_held(view_, s, options), options.spare_blocks);
  const uint32_t cached = seq.cached_tokens / view_.geometry.block_tokens;
  if (admit(seq, Admission::of_new(view_, s, cached, options), options.spare_blocks)) return true;
  // A streaming sequence may find its own prefix in the frames that its rows need; copies of another's may
  // not fit on the device, or not through the ring.
  return cached > 0 && admit(seq, Admission::of_new(view_, s, 0, options), options.spare_blocks);
}

bool PlanBuilder::admit(const SeqView& seq, const Admission& a, uint32_t spare_blocks) {
  if (a.ring_blocks > stage_room()) return false;
  Trial trial(*this, {&seq});
  if (a.adopted_blocks > 0) add(Adoption{seq.id, a.adopted_blocks * view_.geometry.block_tokens});
  promise(seq, a.device_cells, Tier::kDevice);
  promise(seq, a.slower_cells, slower_);
  if (!a.brought_back.empty()) {
    add(CopyChange{Verb::kAdd, seq.id, a.brought_back, all_layers_, Form::kKv, Tier::kDevice,
                   Trigger::kBeforeLayer});
  }
  const int64_t others = int64_t{spare_blocks} * groups_ + view_.peers.left_to_older(seq.arrival);
  if (available_cells() < others + a.free_device_cells) return false;
  for (Tier tier : kAllTiers) {
    if (!state_.fits(tier)) return false;
  }
  trial.keep();
  admitted_without_rows_.push_back(seq.id);
  return true;
}

// ---------------------------------------------------------------- rows

// Rows of the sequence for which there is memory, in addition to those that restore its dropped cells.
uint32_t PlanBuilder::scratch_room(const SeqView& seq) const {
  if (view_.scratch_tokens == 0) return UINT32_MAX;
  const uint32_t taken = state_.rows() + seq.dropped.size();
  return view_.scratch_tokens - std::min(view_.scratch_tokens, taken);
}

bool PlanBuilder::can_run(const SeqView& seq) const {
  if (seq.stalled || seq.tail_busy || waits_too_long_for(seq)) return false;
  const PlanState::Seq as_it_is(seq, /*runs=*/true, all_layers_);
  return state_.history_stage_blocks(as_it_is) <= stage_room() && scratch_room(seq) > 0;
}

// A sequence that was admitted while no peer lent may have a promise for the fewest blocks only. When peers
// lend again, further ones go to make whole leaves, as far as there are cells for them.
uint32_t PlanBuilder::away_blocks(const PlanState::Seq& s, const KvPlacement& where) const {
  const int64_t cells = s.promised[index_of(slower_)] + std::max<int64_t>(ledger(slower_).available(), 0);
  const int64_t most = std::max<int64_t>(where.fewest_away, s.blocks + cells / groups_);
  return static_cast<uint32_t>(std::min<int64_t>(where.away_blocks, most));
}

PlanBuilder::RowPlacement PlanBuilder::placement(const PlanState::Seq& s, const RowOptions& options) const {
  RowPlacement place;
  const KvPlacement where = kv_placement(*s.view);
  place.away_tokens = where.streams ? away_blocks(s, where) * view_.geometry.block_tokens : 0;
  const LayerSet kept = options.kv ? *options.kv : spread_groups(where.kept_groups, groups_);
  if (where.streams) place.leaving = all_layers_ - kept;
  place.writes.kv = options.kv || s.ready_tokens < place.away_tokens ? kept : all_layers_;
  place.writes.x = options.x;
  place.slower = options.slower ? *options.slower : all_layers_ - place.writes.kv - place.writes.x;
  place.restore = options.restore;
  return place;
}

bool PlanBuilder::add_rows(const SeqView& seq, uint32_t end, RowKind kind, const RowPlacement& place) {
  const PlanState::Seq& s = movable(seq);
  if (seq.stalled || seq.tail_busy) return false;
  if (end - s.ready_tokens > scratch_room(seq)) return false;
  if (waits_too_long_for(seq)) return false;
  const bool writes_through = !place.slower.empty() && end / view_.geometry.block_tokens > s.blocks;
  if (writes_through && !has_memory(slower_, Form::kKv)) return false;
  const size_t rows_before = plan_.rows.size();
  Trial trial(*this, {&seq});
  copies_for_rows(seq, end, place);
  if (!seq.dropped.empty()) restore_dropped(seq, place.restore);
  Rows rows;
  rows.seq = seq.id;
  rows.tokens = {s.ready_tokens, end};
  rows.layers = all_layers_;
  rows.kind = kind;
  rows.writes = place.writes;
  rows.samples = end == seq.known_tokens;
  add(std::move(rows));
  if (!state_.fits_stage_ring() || !state_.fits(Tier::kDevice) || !state_.fits(slower_)) return false;
  trial.keep();
  std::erase(admitted_without_rows_, seq.id);
  move_full_blocks_away(seq, place);
  for (size_t i = rows_before; i < plan_.rows.size(); ++i) count_work(seq, plan_.rows[i]);
  return true;
}

// Stages the cells that rows [ready, end) read and that are not on the device. Cells that the rows write and
// do not keep on the device go to the slower tier.
void PlanBuilder::copies_for_rows(const SeqView& seq, uint32_t end, const RowPlacement& place) {
  const PlanState::Seq& s = state_.seq(seq);
  const uint32_t b = view_.geometry.block_tokens;
  if (!s.tail_resident) {
    add(CopyChange{Verb::kAdd,
                   seq.id,
                   {s.ready_tokens / b * b, s.ready_tokens},
                   all_layers_,
                   Form::kKv,
                   Tier::kDevice,
                   Trigger::kBeforeLayer});
  }
  if (s.resident < s.blocks) {
    add(CopyChange{Verb::kStage,
                   seq.id,
                   {0, s.ready_tokens},
                   all_layers_ - s.device_groups,
                   Form::kKv,
                   Tier::kDevice,
                   Trigger::kBeforeLayer});
  }
  const Interval fresh = {s.blocks * b, end / b * b};
  if (!fresh.empty() && !place.slower.empty()) {
    add(CopyChange{Verb::kAdd, seq.id, fresh, place.slower, Form::kKv, slower_, Trigger::kAfterLayerWrites});
  }
}

// Dropped cells are recomputed in the same step as the rows that read them.
void PlanBuilder::restore_dropped(const SeqView& seq, const Writes& keep) {
  Rows rows;
  rows.seq = seq.id;
  rows.tokens = seq.dropped;
  rows.layers = LayerSet::all(seq.dropped_end_group);
  rows.kind = RowKind::kRestore;
  rows.writes = {keep.kv & rows.layers, keep.x & rows.layers};
  add(std::move(rows));
}

// Blocks of a streaming sequence that were adopted, or filled token by token, are still on the device.
void PlanBuilder::move_full_blocks_away(const SeqView& seq, const RowPlacement& place) {
  if (place.leaving.empty()) return;
  const PlanState::Seq& s = state_.seq(seq);
  const uint32_t b = view_.geometry.block_tokens;
  const Interval full = {0, std::min(s.ready_tokens / b * b, place.away_tokens)};
  const uint32_t behind = s.blocks - std::min(s.blocks, place.away_tokens / b);
  const uint32_t tail = behind > 0 || s.ready_tokens % b == 0 ? behind * groups_ : groups_;
  const uint32_t staying =
      seq.blocks == 0 ? s.resident * groups_ : seq.kv_cells(Tier::kDevice) - seq.leaving_cells;
  if (full.empty() || staying <= tail) return;
  // The number of existing copies is known only for the whole sequence, so a long interval may seem to need
  // more room than there is. Then the later half of it is tried, and so on: earlier steps have already copied
  // most of the first half.
  for (Interval some = full; !some.empty(); some.begin = some.end - some.size() / b / 2 * b) {
    if (!try_copies(seq, some, place.leaving, slower_, Trigger::kBackground, Form::kKv)) continue;
    release(seq, some, place.leaving, Tier::kDevice);
    return;
  }
}

void PlanBuilder::count_work(const SeqView& seq, const Rows& rows) {
  if (rows.kind == RowKind::kRestore) {
    StepWork work;
    work.add_prefill(rows.tokens.begin, rows.tokens.size());
    work_ += work.scaled(static_cast<double>(rows.layers.count()) / groups_);
    planned_prefill_ += rows.tokens.size();
    return;
  }
  planned_tokens_ += rows.tokens.size();
  if (rows.kind == RowKind::kDecode) {
    work_.add_decode(rows.tokens.end);
  } else {
    work_.add_prefill(rows.tokens.begin, rows.tokens.size());
    planned_prefill_ += rows.tokens.size();
  }
  work_.projected_tokens += projected_tokens(seq);
}

// Tokens of its history that exist as X only, times layers.
double PlanBuilder::projected_tokens(const SeqView& seq) const {
  uint32_t there = seq.dropped_cells;
  for (Tier tier : kAllTiers) there += seq.kv_cells(tier);
  const uint32_t all = seq.live_cells(view_.geometry);
  return static_cast<double>(all - std::min(all, there)) * view_.geometry.block_tokens *
         view_.geometry.layers_per_group;
}

// Prefill rows for which the stall budget has room.
uint32_t PlanBuilder::prefill_room() const {
  const uint32_t most = view_.limits.max_prefill_beside_decodes;
  if (!decodes_run_ || most == 0) return UINT32_MAX;
  return most - std::min(most, planned_prefill_);
}

// Decodes of other sequences do not wait longer for its restored cells than they would for a prefill.
bool PlanBuilder::waits_too_long_for(const SeqView& seq) const {
  return !plan_.rows.empty() && seq.dropped.size() > prefill_room();
}

uint32_t PlanBuilder::prefill(const SeqView& seq, uint32_t max_tokens, const RowOptions& options) {
  const PlanState::Seq& s = movable(seq);
  const RowPlacement place = placement(s, options);
  const LayerSet& kept = place.writes.kv;
  const uint32_t b = view_.geometry.block_tokens;
  const uint32_t begin = s.ready_tokens;
  int64_t end = std::min<int64_t>(seq.known_tokens, int64_t{begin} + max_tokens);
  // Rows of one step keep the same layer groups: a chunk ends where what stays begins.
  if (begin < place.away_tokens) end = std::min<int64_t>(end, place.away_tokens);
  end = std::min<int64_t>(end, int64_t{begin} + std::min(prefill_room(), scratch_room(seq)));
  const int64_t device_cells =
      s.promised[index_of(Tier::kDevice)] + std::max<int64_t>(ledger(Tier::kDevice).available(), 0);
  if (kept == all_layers_) {
    end = std::min(end, (s.blocks + device_cells / groups_) * b);
  } else {
    // Staged blocks and the full blocks of this chunk pass through the ring. The device keeps some groups of
    // the full blocks, and all groups of the block in which the chunk ends.
    int64_t room = int64_t{stage_room()} - state_.history_stage_blocks(s);
    if (!kept.empty()) room = std::min(room, (device_cells - groups_) / kept.count());
    end = std::min(end, (s.blocks + std::max<int64_t>(room, 0) + 1) * b - 1);
  }
  if (end <= begin) return 0;
  const RowKind kind = begin < seq.prompt_tokens ? RowKind::kPrefill : RowKind::kRecompute;
  return add_rows(seq, static_cast<uint32_t>(end), kind, place) ? static_cast<uint32_t>(end) - begin : 0;
}

bool PlanBuilder::decode(const SeqView& seq, const RowOptions& options) {
  KV_CHECK(seq.decoding(), "seq={} ready={} known={}", raw(seq.id), seq.ready_tokens, seq.known_tokens);
  return add_rows(seq, seq.known_tokens, RowKind::kDecode, placement(movable(seq), options));
}

// ---------------------------------------------------------------- the plan

bool PlanBuilder::admitted_in_vain(SeqId id) const {
  return std::find(admitted_without_rows_.begin(), admitted_without_rows_.end(), id) !=
         admitted_without_rows_.end();
}

bool PlanBuilder::idle() const {
  return plan_.rows.empty() && plan_.preemptions.empty() && plan_.failures.empty() &&
         std::all_of(plan_.copies.begin(), plan_.copies.end(),
                     [&](const CopyChange& c) { return admitted_in_vain(c.seq); });
}

StepPlan PlanBuilder::take() {
  std::erase_if(plan_.adoptions, [&](const Adoption& a) { return admitted_in_vain(a.seq); });
  std::erase_if(plan_.promises,
                [&](const Promise& p) { return admitted_in_vain(p.owner) || admitted_in_vain(p.from); });
  std::erase_if(plan_.copies, [&](const CopyChange& c) { return admitted_in_vain(c.seq); });
  return std::move(plan_);
}

bool PlanBuilder::has_rows(SeqId id) const {
  const PlanState::Seq* s = state_.find(id);
  return s && s->has_rows;
}

bool PlanBuilder::releases(SeqId id) const {
  const PlanState::Seq* s = state_.find(id);
  return s && s->releases;
}

bool PlanBuilder::preempted(SeqId id) const {
  const PlanState::Seq* s = state_.find(id);
  return s && s->stopped;
}

}  // namespace kvasir
