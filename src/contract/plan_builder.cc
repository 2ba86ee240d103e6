#include "contract/plan_builder.h"

#include <algorithm>
#include <utility>

namespace kvasir {

PlanBuilder::PlanBuilder(const View& view)
    : view_(view),
      groups_(view.geometry.groups()),
      all_layers_(LayerSet::all(groups_)),
      slower_(view.slower_tier()),
      ledgers_{CellLedger(view, Tier::kDevice), CellLedger(view, Tier::kHost), CellLedger(view, Tier::kDisk)},
      reserved_(view.reserved_cells),
      running_seqs_(static_cast<uint32_t>(view.running.size())),
      decodes_run_(std::any_of(view.running.begin(), view.running.end(),
                               [](const SeqView& s) { return s.decoding(); })) {
  touched_.reserve(view.running.size());
}

PlanBuilder::Touched& PlanBuilder::state(const SeqView& seq) {
  auto [it, inserted] = touched_.try_emplace(seq.id);
  Touched& t = it->second;
  if (inserted) {
    t.ready_tokens = seq.ready_tokens;
    t.blocks = seq.blocks;
    t.resident = seq.resident_blocks;
    t.peer_blocks = seq.peer_blocks;
    t.device_groups = seq.device_groups;
    t.tail_resident = seq.tail_resident;
    t.promised = seq.promised_cells;
  }
  return t;
}

PlanBuilder::Touched& PlanBuilder::touch(const SeqView& seq) {
  Touched& t = state(seq);
  KV_CHECK(!t.has_rows && !t.gone, "seq={}", raw(seq.id));
  return t;
}

// Takes cells, of what the sequence was promised first. False, and nothing is taken, if they are not there.
bool PlanBuilder::take(Touched& t, Tier tier, uint32_t cells) {
  uint32_t& promised = t.promised[static_cast<size_t>(tier)];
  const uint32_t drawn = std::min(cells, promised);
  if (cells > drawn && int64_t{cells - drawn} > ledger(tier).available()) return false;
  promised -= drawn;
  ledger(tier).take(cells - drawn);
  return true;
}

Residence PlanBuilder::residence(const SeqView& seq) const {
  return Residence::of(view_.geometry.blocks_for(seq.max_total_tokens), view_.capacity(seq.blocks > 0));
}

// Blocks of each layer that pass the ring when rows of the sequence run.
uint32_t PlanBuilder::stage_blocks(const SeqView& seq, const Touched& t) const {
  const uint32_t away = t.blocks - t.resident;
  const uint32_t lacking = away - std::min(away, t.peer_blocks);
  const uint32_t x_elsewhere = seq.x_elsewhere() ? std::max(lacking, t.x_elsewhere) : t.x_elsewhere;
  return history_stage_blocks(view_.geometry, seq, lacking, x_elsewhere);
}

// Rows of the sequence, beside those that compute again what it dropped, for which there is memory.
uint32_t PlanBuilder::scratch_room(const SeqView& seq) const {
  if (view_.scratch_tokens == 0) return UINT32_MAX;
  const uint32_t taken = planned_rows_ + seq.dropped.size();
  return view_.scratch_tokens - std::min(view_.scratch_tokens, taken);
}

bool PlanBuilder::can_run(const SeqView& seq) const {
  if (seq.stalled || seq.tail_busy || waits_too_long_for(seq)) return false;
  Touched as_it_is;
  as_it_is.blocks = seq.blocks;
  as_it_is.resident = seq.resident_blocks;
  as_it_is.peer_blocks = seq.peer_blocks;
  return stage_blocks(seq, as_it_is) <= stage_room() && scratch_room(seq) > 0;
}

PlanBuilder::Placement PlanBuilder::placement(const SeqView& seq, const RowOptions& options) const {
  Placement place;
  const Residence where = residence(seq);
  place.writes.kv =
      options.kv ? *options.kv : (where.streams ? spread_groups(where.kept_groups, groups_) : all_layers_);
  place.writes.x = options.x;
  place.writes.h = options.h;
  place.slower = options.slower ? *options.slower : all_layers_ - place.writes.kv - place.writes.x;
  place.restore = options.restore;
  return place;
}

void PlanBuilder::copy_change(const SeqView& seq, Verb verb, Interval tokens, const LayerSet& layers,
                              Form form, Tier tier, Trigger trigger) {
  plan_.copies.push_back({verb, seq.id, tokens, layers, form, tier, trigger});
}

// ---------------------------------------------------------------- admission

uint32_t PlanBuilder::slower_cells_to_come(const SeqView& seq) const {
  const Residence where = residence(seq);
  if (!where.streams) return 0;
  // The block in which it ends stays on the device. Residence counts it, too: had peers lent so much less,
  // and no more were to be had, it would take the sequence for one that does not fit.
  const uint32_t at_its_end = view_.peers.most_borrowed > 0 ? 0 : 1;
  const uint32_t blocks = view_.geometry.blocks_for(seq.max_total_tokens) - at_its_end;
  const uint32_t most = blocks * (groups_ - where.kept_groups);
  return most - std::min(most, seq.kv_cells(slower_) + seq.promised(slower_));
}

// Blocks that an admission is promised, or holds already.
uint32_t PlanBuilder::blocks_asked(const SeqView& seq, const AdmitOptions& options) const {
  return view_.geometry.blocks_for(std::max(seq.known_tokens, options.total_tokens));
}

// What is to be computed behind so many blocks, where the K and V of full ones stay on the device in some
// layer groups only.
PlanBuilder::FreshCells PlanBuilder::fresh_cells(const SeqView& seq, const AdmitOptions& options,
                                                 uint32_t blocks) const {
  const uint32_t tokens = std::max(seq.known_tokens, options.total_tokens);
  const uint32_t full = tokens / view_.geometry.block_tokens;
  const uint32_t fresh = full - std::min(full, blocks);
  const uint32_t last = view_.geometry.blocks_for(tokens) > std::max(full, blocks) ? groups_ : 0;
  return {fresh * options.kv->count() + last, fresh * (all_layers_ - *options.kv - options.x).count()};
}

bool PlanBuilder::admit(const SeqView& seq, const AdmitOptions& options) {
  KV_CHECK(options.x.empty() || (options.kv && (*options.kv & options.x).empty()), "seq={}", raw(seq.id));
  if (running_seqs_ >= view_.limits.max_num_seqs) return false;
  // A promise without rows would be kept from others for nothing.
  if (seq.stalled || seq.tail_busy || (!seq.decoding() && prefill_room() == 0)) return false;
  if (seq.blocks > 0) return bring_back(seq, options);
  const uint32_t cached = seq.cached_tokens / view_.geometry.block_tokens;
  if (admit_with(seq, cached, options)) return true;
  // One that streams may find its own prefix in the frames that its rows need; of another's the copies may
  // not fit on the device, or not through the ring.
  return cached > 0 && admit_with(seq, 0, options);
}

int64_t PlanBuilder::spare_cells(const SeqView& seq, const AdmitOptions& options) const {
  return int64_t{options.spare_blocks} * groups_ + view_.peers.left_to_older(seq.arrival);
}

// Admits a sequence that holds nothing, and adopts so many blocks: all that are cached, or none.
bool PlanBuilder::admit_with(const SeqView& seq, uint32_t adopted, const AdmitOptions& options) {
  const Residence where = residence(seq);
  const uint32_t blocks = blocks_asked(seq, options);
  const uint32_t promised = this->promised(seq);
  const uint32_t there = adopted > 0 ? seq.cached_resident_cells : 0;
  const uint32_t elsewhere = adopted * groups_ - there;
  // X that comes over a link passes the ring on its way to become KV.
  const bool x = elsewhere > 0 && view_.geometry.has(Form::kX) && view_.total_cells(slower_) > 0;
  const bool partial = options.kv && !where.streams;
  const bool stays_elsewhere = where.streams || partial;
  const uint32_t through_ring = (stays_elsewhere && elsewhere > 0 ? adopted : 0) + (x ? adopted : 0);
  if (through_ring > stage_room()) return false;
  // One that streams needs no more at a time than the block that it ends in, and the one where it began,
  // beside what it adopts; it is asked for and not kept.
  const uint32_t asked = where.streams ? 2 * groups_ + blocks * where.kept_groups : 0;
  const FreshCells some = partial ? fresh_cells(seq, options, adopted) : FreshCells{};
  const uint32_t whole = partial ? some.device : (where.streams ? 0 : blocks * groups_ - there);
  const uint32_t fresh = whole > promised ? whole - promised : 0;
  const uint32_t on_slower = partial ? some.slower : slower_cells_to_come(seq);
  std::array<CellLedger, kTiers> after = ledgers_;
  after[index_of(Tier::kDevice)].take(fresh);
  after[index_of(slower_)].take(on_slower);
  if (!stays_elsewhere) after[index_of(Tier::kDevice)].find(elsewhere);
  if (adopted > 0) {
    const auto kv = seq.cached_idle[index_of(Form::kKv)];
    const auto x_idle = seq.cached_idle[index_of(Form::kX)];
    after[index_of(Tier::kDevice)].adopt(there, kv[index_of(Tier::kDevice)]);
    for (Tier tier : kAllTiers) {
      if (tier != Tier::kDevice) after[index_of(tier)].adopt(elsewhere, kv[index_of(tier)]);
      if (view_.geometry.has(Form::kX))
        after[index_of(tier)].adopt(elsewhere, x_idle[index_of(tier)], Form::kX);
    }
  }
  if (after[index_of(Tier::kDevice)].available() < spare_cells(seq, options) + asked) return false;
  for (const CellLedger& tier : after) {
    if (!tier.fits()) return false;
  }

  Touched& t = touch(seq);
  ledgers_ = after;
  t.admitted = true;
  ++running_seqs_;
  t.ready_tokens = adopted * view_.geometry.block_tokens;
  t.blocks = t.resident = adopted;
  if (x) t.x_elsewhere = adopted;
  if (adopted > 0) plan_.adoptions.push_back({seq.id, t.ready_tokens});
  promise(seq, t, Tier::kDevice, fresh);
  promise(seq, t, slower_, on_slower);
  if (elsewhere > 0 && stays_elsewhere) {
    t.resident = 0;
    t.device_groups = {};
  } else if (elsewhere > 0) {
    copy_change(seq, Verb::kAdd, {0, t.ready_tokens}, all_layers_, Form::kKv, Tier::kDevice,
                Trigger::kBeforeLayer);
    // What comes draws on the promise.
    uint32_t& left = t.promised[index_of(Tier::kDevice)];
    left -= std::min(left, elsewhere);
  }
  return true;
}

// Admits a sequence that still holds cells: on the device, elsewhere, or some here and some there.
bool PlanBuilder::bring_back(const SeqView& seq, const AdmitOptions& options) {
  const uint32_t b = view_.geometry.block_tokens;
  const bool partial = options.kv && !residence(seq).streams;
  const bool long_one = partial || residence(seq).streams;
  const Interval back = {long_one ? seq.ready_tokens / b * b : 0, seq.ready_tokens};
  const uint32_t held = seq.kv_cells(Tier::kDevice);
  const bool adds = !back.empty() && (held < seq.blocks * groups_ || seq.leaving_cells > 0);
  const uint32_t missing =
      adds ? cells_to_add(view_.geometry, seq, seq.blocks, back, all_layers_, Tier::kDevice, /*tail=*/true)
           : 0;
  const FreshCells some = partial ? fresh_cells(seq, options, seq.blocks) : FreshCells{};
  const uint32_t known = partial ? some.device : (long_one ? 0 : blocks_asked(seq, options) * groups_);
  const uint32_t covered = promised(seq) + (partial ? 0 : held + missing);
  const uint32_t more = known > covered ? known - covered : 0;
  const uint32_t on_slower = partial ? some.slower : slower_cells_to_come(seq);
  // One that streams may begin a block in its next step.
  const uint32_t asked = long_one ? groups_ : 0;
  std::array<CellLedger, kTiers> after = ledgers_;
  CellLedger& device = after[index_of(Tier::kDevice)];
  device.take(missing + more);
  device.find(missing);
  after[index_of(slower_)].take(on_slower);
  if (device.available() - asked < spare_cells(seq, options)) return false;
  if (!device.fits() || !after[index_of(slower_)].fits()) return false;

  Touched& t = touch(seq);
  ledgers_ = after;
  t.admitted = true;
  ++running_seqs_;
  if (adds) {
    copy_change(seq, Verb::kAdd, back, all_layers_, Form::kKv, Tier::kDevice, Trigger::kBeforeLayer);
    t.tail_resident = true;
    if (!long_one) {
      if (seq.x_elsewhere()) t.x_elsewhere = t.blocks - t.resident;
      t.resident = seq.blocks;
      t.device_groups = all_layers_;
    }
  }
  if (more > 0) {
    // The copies draw on promises, too: what comes back is promised with what is to be computed.
    promise(seq, t, Tier::kDevice, missing + more);
    t.promised[index_of(Tier::kDevice)] -= missing;
  }
  promise(seq, t, slower_, on_slower);
  return true;
}

// ---------------------------------------------------------------- rows

bool PlanBuilder::add_rows(const SeqView& seq, uint32_t end, RowKind kind, const Placement& place) {
  Touched& t = touch(seq);
  if (seq.stalled || seq.tail_busy) return false;
  const RowNeeds needs(view_.geometry, t.blocks, t.resident, end, place.writes, place.slower);
  const uint32_t history = t.blocks - t.resident;
  const uint32_t staged = needs.stage_blocks - history + stage_blocks(seq, t);
  if (staged > stage_room()) return false;
  if (end - t.ready_tokens > scratch_room(seq)) return false;
  if (waits_too_long_for(seq)) return false;
  const uint32_t b = view_.geometry.block_tokens;
  const Interval tail = {t.ready_tokens / b * b, t.ready_tokens};
  const uint32_t tail_cells = t.tail_resident ? 0
                                              : cells_to_add(view_.geometry, seq, t.blocks, tail, all_layers_,
                                                             Tier::kDevice, /*tail=*/true);
  const bool again = !seq.dropped.empty();
  const uint32_t again_blocks = again ? view_.geometry.blocks_for(seq.dropped.size()) : 0;
  const std::array<uint32_t, kTiers> promised = t.promised;
  const std::array<CellLedger, kTiers> ledgers = ledgers_;
  CellLedger& device = ledger(Tier::kDevice);
  bool fits = take(t, Tier::kDevice, needs.device_cells + tail_cells) && take(t, slower_, needs.slow_cells);
  device.find(tail_cells);
  device.take(needs.x_cells, Form::kX);
  device.take(needs.h_cells, Form::kH);
  if (again) {
    device.take(again_blocks * place.restore.kv.count());
    device.take(again_blocks * place.restore.x.count(), Form::kX);
    device.take(again_blocks * place.restore.h.count(), Form::kH);
  }
  fits = fits && device.fits() && ledger(slower_).fits();
  if (!fits) {
    t.promised = promised;
    ledgers_ = ledgers;
    return false;
  }

  if (!t.tail_resident) {
    copy_change(seq, Verb::kAdd, tail, all_layers_, Form::kKv, Tier::kDevice, Trigger::kBeforeLayer);
    t.tail_resident = true;
  }
  plan_copies_of_rows(seq, t, end, place);
  if (again) compute_again(seq, place.restore);
  staged_blocks_ += staged;
  t.blocks += needs.new_blocks;
  t.has_rows = true;
  Rows rows;
  rows.seq = seq.id;
  rows.tokens = {t.ready_tokens, end};
  rows.layers = all_layers_;
  rows.kind = kind;
  rows.writes = place.writes;
  rows.samples = end == seq.known_tokens;
  planned_tokens_ += rows.tokens.size();
  planned_rows_ += rows.tokens.size();
  if (kind == RowKind::kDecode) {
    work_.add_decode(end);
  } else {
    work_.add_prefill(rows.tokens.begin, rows.tokens.size());
  }
  work_.projected_tokens += projected_tokens(seq);
  if (kind != RowKind::kDecode) planned_prefill_ += rows.tokens.size();
  t.ready_tokens = end;
  plan_.rows.push_back(std::move(rows));
  return true;
}

// Of its history, times layers, that is there as X alone.
double PlanBuilder::projected_tokens(const SeqView& seq) const {
  uint32_t there = seq.bare_cells;
  for (Tier tier : kAllTiers) there += seq.kv_cells(tier);
  const uint32_t all = seq.blocks * groups_;
  return static_cast<double>(all - std::min(all, there)) * view_.geometry.block_tokens *
         view_.geometry.layers_per_group;
}

// What was dropped is computed again beside the rows that read it.
void PlanBuilder::compute_again(const SeqView& seq, const Writes& restore) {
  Rows rows;
  rows.seq = seq.id;
  rows.tokens = seq.dropped;
  for (uint32_t g = seq.restart_group; g < seq.dropped_end_group; ++g) rows.layers.add(g);
  rows.kind = RowKind::kRecompute;
  rows.writes = {restore.kv & rows.layers, restore.x & rows.layers, restore.h & rows.layers};
  planned_rows_ += rows.tokens.size();
  planned_prefill_ += rows.tokens.size();
  StepWork again;
  again.add_prefill(rows.tokens.begin, rows.tokens.size());
  work_ += again.scaled(static_cast<double>(rows.layers.count()) / groups_);
  plan_.rows.push_back(std::move(rows));
}

// What the rows [ready, end) read that is not on the device is staged; of what they write, and of full blocks
// on the device, that goes to the slower tier which is not to be kept.
void PlanBuilder::plan_copies_of_rows(const SeqView& seq, const Touched& before, uint32_t end,
                                      const Placement& place) {
  const uint32_t b = view_.geometry.block_tokens;
  if (before.resident < before.blocks) {
    copy_change(seq, Verb::kStage, {0, before.ready_tokens}, all_layers_ - before.device_groups, Form::kKv,
                Tier::kDevice, Trigger::kBeforeLayer);
  }
  const Interval fresh = {before.blocks * b, end / b * b};
  if (!fresh.empty() && !place.slower.empty()) {
    copy_change(seq, Verb::kAdd, fresh, place.slower, Form::kKv, slower_, Trigger::kAfterLayerWrites);
  }
  if (place.writes.kv == all_layers_ || !residence(seq).streams) return;
  // Blocks that were adopted, or filled token by token, are still on the device.
  const Interval full = {0, before.ready_tokens / b * b};
  const uint32_t tail = before.ready_tokens % b == 0 ? 0 : groups_;
  const uint32_t staying =
      seq.blocks == 0 ? before.resident * groups_ : seq.kv_cells(Tier::kDevice) - seq.leaving_cells;
  if (full.empty() || staying <= tail) return;
  // How many copies exist already is known only of the sequence as a whole, so a long interval may seem to
  // take more than there is room for. Then the later half of it is tried, and so on: steps before this one
  // have copied most of what comes first.
  const LayerSet leaving = all_layers_ - place.writes.kv;
  for (Interval some = full; !some.empty(); some.begin = some.end - some.size() / b / 2 * b) {
    if (!add_copies(seq, some, leaving, slower_, Trigger::kBackground)) continue;
    release(seq, some, leaving, Tier::kDevice);
    return;
  }
}

// Rows of prefill for which the stall budget has room.
uint32_t PlanBuilder::prefill_room() const {
  const uint32_t most = view_.limits.max_prefill_beside_decodes;
  if (!decodes_run_ || most == 0) return UINT32_MAX;
  return most - std::min(most, planned_prefill_);
}

// Others' decodes do not wait for what it computes again longer than they would for a prefill.
bool PlanBuilder::waits_too_long_for(const SeqView& seq) const {
  return !plan_.rows.empty() && seq.dropped.size() > prefill_room();
}

uint32_t PlanBuilder::prefill(const SeqView& seq, uint32_t max_tokens, const RowOptions& options) {
  const Touched& t = touch(seq);
  const Placement place = placement(seq, options);
  const LayerSet& kept = place.writes.kv;
  const uint32_t b = view_.geometry.block_tokens;
  const uint32_t begin = t.ready_tokens;
  int64_t end = std::min<int64_t>(seq.known_tokens, int64_t{begin} + max_tokens);
  end = std::min<int64_t>(end, int64_t{begin} + std::min(prefill_room(), scratch_room(seq)));
  const int64_t device_cells =
      t.promised[index_of(Tier::kDevice)] + std::max<int64_t>(ledger(Tier::kDevice).available(), 0);
  if (kept == all_layers_) {
    end = std::min(end, (t.blocks + device_cells / groups_) * b);
  } else {
    // Through the ring pass what is staged and the full blocks of this chunk; of those some groups are kept,
    // and all of the block in which it ends.
    int64_t room = int64_t{stage_room()} - stage_blocks(seq, t);
    if (!kept.empty()) room = std::min(room, (device_cells - groups_) / kept.count());
    end = std::min(end, (t.blocks + std::max<int64_t>(room, 0) + 1) * b - 1);
  }
  if (end <= begin) return 0;
  const RowKind kind = begin < seq.prompt_tokens ? RowKind::kPrefill : RowKind::kRecompute;
  return add_rows(seq, static_cast<uint32_t>(end), kind, place) ? static_cast<uint32_t>(end) - begin : 0;
}

bool PlanBuilder::decode(const SeqView& seq, const RowOptions& options) {
  KV_CHECK(seq.decoding(), "seq={} ready={} known={}", raw(seq.id), seq.ready_tokens, seq.known_tokens);
  return add_rows(seq, seq.known_tokens, RowKind::kDecode, placement(seq, options));
}

// ---------------------------------------------------------------- the plan

bool PlanBuilder::admitted_in_vain(SeqId id) const {
  auto it = touched_.find(id);
  return it != touched_.end() && it->second.admitted && !it->second.has_rows;
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
  auto it = touched_.find(id);
  return it != touched_.end() && it->second.has_rows;
}

bool PlanBuilder::releases(SeqId id) const {
  auto it = touched_.find(id);
  return it != touched_.end() && it->second.releases;
}

bool PlanBuilder::preempted(SeqId id) const {
  auto it = touched_.find(id);
  return it != touched_.end() && it->second.gone;
}

}  // namespace kvasir
