#include "contract/plan_builder.h"

#include <algorithm>
#include <utility>

namespace kvasir {

PlanBuilder::PlanBuilder(const View& view)
    : view_(view),
      groups_(view.geometry.groups()),
      all_layers_(LayerSet::all(groups_)),
      device_(view, Tier::kDevice),
      host_(view, Tier::kHost),
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
  return Residence::of(
      view_.geometry.blocks_for(seq.max_total_tokens),
      {groups_, view_.total_cells(Tier::kDevice), view_.total_cells(Tier::kHost), view_.stage_blocks});
}

bool PlanBuilder::can_run(const SeqView& seq) const {
  if (seq.stalled || seq.tail_busy) return false;
  return seq.blocks - seq.resident_blocks + staged_blocks_ <= view_.stage_blocks;
}

LayerSet PlanBuilder::kept(const SeqView& seq, const std::optional<LayerSet>& keep) const {
  if (keep) return *keep;
  const Residence where = residence(seq);
  return where.streams ? spread_groups(where.kept_groups, groups_) : all_layers_;
}

void PlanBuilder::copy_change(const SeqView& seq, Verb verb, Interval tokens, const LayerSet& layers,
                              Tier tier, Trigger trigger) {
  plan_.copies.push_back({verb, seq.id, tokens, layers, Form::kKv, tier, trigger});
}

void PlanBuilder::promise(const SeqView& seq, Touched& t, Tier tier, uint32_t cells) {
  if (cells == 0) return;
  t.promised[static_cast<size_t>(tier)] += cells;
  plan_.promises.push_back({seq.id, cells, tier, Promise::Kind::kOwn});
}

// ---------------------------------------------------------------- admission

// What a sequence that streams may still need on the host: at its greatest length all but the last block.
uint32_t PlanBuilder::host_cells_to_come(const SeqView& seq) const {
  const Residence where = residence(seq);
  if (!where.streams) return 0;
  const uint32_t most = (view_.geometry.blocks_for(seq.max_total_tokens) - 1) * (groups_ - where.kept_groups);
  return most - std::min(most, seq.kv_cells(Tier::kHost) + seq.promised(Tier::kHost));
}

bool PlanBuilder::admit(const SeqView& seq, uint32_t spare_blocks) {
  if (running_seqs_ >= view_.limits.max_num_seqs) return false;
  // A promise without rows would be kept from others for nothing.
  if (seq.stalled || seq.tail_busy || (!seq.decoding() && prefill_room() == 0)) return false;
  if (seq.blocks > 0) return bring_back(seq, spare_blocks);
  const uint32_t cached = seq.cached_tokens / view_.geometry.block_tokens;
  if (admit_with(seq, cached, spare_blocks)) return true;
  // One that streams may find its own prefix in the frames that its rows need.
  return cached > 0 && residence(seq).streams && admit_with(seq, 0, spare_blocks);
}

// Admits a sequence that holds nothing, and adopts so many blocks: all that are cached, or none.
bool PlanBuilder::admit_with(const SeqView& seq, uint32_t adopted, uint32_t spare_blocks) {
  const Residence where = residence(seq);
  const uint32_t known_blocks = view_.geometry.blocks_for(seq.known_tokens);
  const uint32_t promised = seq.promised(Tier::kDevice);
  // One that streams needs no more at a time than the block that it ends in, and the one where it began,
  // beside what it adopts; it is asked for and not kept.
  const uint32_t asked = where.streams ? 2 * groups_ + known_blocks * where.kept_groups : 0;
  const uint32_t whole = where.streams ? 0 : (known_blocks - adopted) * groups_;
  const uint32_t fresh = whole > promised ? whole - promised : 0;
  const uint32_t on_host = host_cells_to_come(seq);
  CellLedger after = device_;
  after.take(fresh);
  if (adopted > 0) after.adopt(adopted * groups_, seq.cached_idle_blocks * groups_);
  if (after.available() < int64_t{spare_blocks} * groups_ + asked || host_.available() < on_host)
    return false;

  Touched& t = touch(seq);
  device_ = after;
  host_.take(on_host);
  ++running_seqs_;
  t.ready_tokens = adopted * view_.geometry.block_tokens;
  t.blocks = t.resident = adopted;
  if (adopted > 0) plan_.adoptions.push_back({seq.id, t.ready_tokens});
  promise(seq, t, Tier::kDevice, fresh);
  promise(seq, t, Tier::kHost, on_host);
  return true;
}

// Admits a sequence that still holds cells: on the device, elsewhere, or some here and some there.
bool PlanBuilder::bring_back(const SeqView& seq, uint32_t spare_blocks) {
  const uint32_t b = view_.geometry.block_tokens;
  const bool long_one = residence(seq).streams;
  const Interval back = {long_one ? seq.ready_tokens / b * b : 0, seq.ready_tokens};
  const uint32_t held = seq.kv_cells(Tier::kDevice);
  const bool adds = !back.empty() && (held < seq.blocks * groups_ || seq.leaving_cells > 0);
  const uint32_t missing =
      adds ? cells_to_add(view_.geometry, seq, seq.blocks, back, all_layers_, Tier::kDevice, /*tail=*/true)
           : 0;
  const uint32_t known = long_one ? 0 : view_.geometry.blocks_for(seq.known_tokens) * groups_;
  const uint32_t covered = held + missing + seq.promised(Tier::kDevice);
  const uint32_t more = known > covered ? known - covered : 0;
  const uint32_t on_host = host_cells_to_come(seq);
  // One that streams may begin a block in its next step.
  const uint32_t asked = long_one ? groups_ : 0;
  if (device_.available() - missing - more - asked < int64_t{spare_blocks} * groups_) return false;
  if (host_.available() < on_host) return false;

  Touched& t = touch(seq);
  device_.take(missing + more);
  host_.take(on_host);
  ++running_seqs_;
  if (adds) {
    copy_change(seq, Verb::kAdd, back, all_layers_, Tier::kDevice, Trigger::kBeforeLayer);
    t.tail_resident = true;
    if (!long_one) {
      t.resident = seq.blocks;
      t.device_groups = all_layers_;
    }
  }
  if (more > 0) {
    // The copies draw on promises, too: what comes back is promised with what is to be computed.
    promise(seq, t, Tier::kDevice, missing + more);
    t.promised[static_cast<size_t>(Tier::kDevice)] -= missing;
  }
  promise(seq, t, Tier::kHost, on_host);
  return true;
}

// ---------------------------------------------------------------- rows

bool PlanBuilder::add_rows(const SeqView& seq, uint32_t end, RowKind kind, const LayerSet& keep) {
  Touched& t = touch(seq);
  if (seq.stalled || seq.tail_busy) return false;
  const RowNeeds needs(view_.geometry, t.blocks, t.resident, end, keep);
  if (needs.stage_blocks > 0 && staged_blocks_ + needs.stage_blocks > view_.stage_blocks) return false;
  const uint32_t b = view_.geometry.block_tokens;
  const Interval tail = {t.ready_tokens / b * b, t.ready_tokens};
  const uint32_t tail_cells = t.tail_resident ? 0
                                              : cells_to_add(view_.geometry, seq, t.blocks, tail, all_layers_,
                                                             Tier::kDevice, /*tail=*/true);
  const std::array<uint32_t, kTiers> promised = t.promised;
  const CellLedger device = device_;
  if (!take(t, Tier::kDevice, needs.device_cells + tail_cells)) return false;
  if (!take(t, Tier::kHost, needs.host_cells)) {
    t.promised = promised;
    device_ = device;
    return false;
  }

  if (!t.tail_resident) {
    copy_change(seq, Verb::kAdd, tail, all_layers_, Tier::kDevice, Trigger::kBeforeLayer);
    t.tail_resident = true;
  }
  plan_copies_of_rows(seq, t, end, keep);
  staged_blocks_ += needs.stage_blocks;
  t.blocks += needs.new_blocks;
  t.has_rows = true;
  Rows rows;
  rows.seq = seq.id;
  rows.tokens = {t.ready_tokens, end};
  rows.layers = all_layers_;
  rows.kind = kind;
  rows.writes.kv = keep;
  rows.samples = end == seq.known_tokens;
  planned_tokens_ += rows.tokens.size();
  if (kind != RowKind::kDecode) planned_prefill_ += rows.tokens.size();
  t.ready_tokens = end;
  plan_.rows.push_back(std::move(rows));
  return true;
}

// What the rows [ready, end) read that is not on the device is staged; of what they write, and of full blocks
// on the device, that goes to the host which is not to be kept.
void PlanBuilder::plan_copies_of_rows(const SeqView& seq, const Touched& before, uint32_t end,
                                      const LayerSet& keep) {
  const uint32_t b = view_.geometry.block_tokens;
  if (before.resident < before.blocks) {
    copy_change(seq, Verb::kStage, {0, before.ready_tokens}, all_layers_ - before.device_groups,
                Tier::kDevice, Trigger::kBeforeLayer);
  }
  if (keep == all_layers_) return;
  const Interval fresh = {before.blocks * b, end / b * b};
  if (!fresh.empty()) {
    copy_change(seq, Verb::kAdd, fresh, all_layers_ - keep, Tier::kHost, Trigger::kAfterLayerWrites);
  }
  if (!residence(seq).streams) return;
  // Blocks that were adopted, or filled token by token, are still on the device.
  const Interval full = {0, before.ready_tokens / b * b};
  const uint32_t tail = before.ready_tokens % b == 0 ? 0 : groups_;
  const uint32_t staying =
      seq.blocks == 0 ? before.resident * groups_ : seq.kv_cells(Tier::kDevice) - seq.leaving_cells;
  if (!full.empty() && staying > tail &&
      add_copies(seq, full, all_layers_ - keep, Tier::kHost, Trigger::kBackground)) {
    release(seq, full, all_layers_ - keep, Tier::kDevice);
  }
}

// Rows of prefill for which the stall budget has room.
uint32_t PlanBuilder::prefill_room() const {
  const uint32_t most = view_.limits.max_prefill_beside_decodes;
  if (!decodes_run_ || most == 0) return UINT32_MAX;
  return most - std::min(most, planned_prefill_);
}

uint32_t PlanBuilder::prefill(const SeqView& seq, uint32_t max_tokens, std::optional<LayerSet> keep) {
  const Touched& t = touch(seq);
  const LayerSet where = kept(seq, keep);
  const uint32_t b = view_.geometry.block_tokens;
  const uint32_t begin = t.ready_tokens;
  int64_t end = std::min<int64_t>(seq.known_tokens, int64_t{begin} + max_tokens);
  end = std::min<int64_t>(end, int64_t{begin} + prefill_room());
  const int64_t device_cells =
      t.promised[static_cast<size_t>(Tier::kDevice)] + std::max<int64_t>(device_.available(), 0);
  if (where == all_layers_) {
    end = std::min(end, (t.blocks + device_cells / groups_) * b);
  } else {
    // Through the ring pass what is staged and the full blocks of this chunk; of those some groups are kept,
    // and all of the block in which it ends.
    int64_t room = int64_t{view_.stage_blocks} - staged_blocks_ - (t.blocks - t.resident);
    if (!where.empty()) room = std::min(room, (device_cells - groups_) / where.count());
    end = std::min(end, (t.blocks + std::max<int64_t>(room, 0) + 1) * b - 1);
  }
  if (end <= begin) return 0;
  const RowKind kind = begin < seq.prompt_tokens ? RowKind::kPrefill : RowKind::kRecompute;
  return add_rows(seq, static_cast<uint32_t>(end), kind, where) ? static_cast<uint32_t>(end) - begin : 0;
}

bool PlanBuilder::decode(const SeqView& seq, std::optional<LayerSet> keep) {
  KV_CHECK(seq.decoding(), "seq={} ready={} known={}", raw(seq.id), seq.ready_tokens, seq.known_tokens);
  return add_rows(seq, seq.known_tokens, RowKind::kDecode, kept(seq, keep));
}

// ---------------------------------------------------------------- preemption and copies

void PlanBuilder::leave_running(const SeqView& seq) {
  Touched& t = touch(seq);
  t.gone = true;
  --running_seqs_;
  device_.end_promise(t.promised[static_cast<size_t>(Tier::kDevice)]);
  host_.end_promise(t.promised[static_cast<size_t>(Tier::kHost)]);
  t.promised = {};
  plan_.preemptions.push_back({seq.id});
}

void PlanBuilder::drop_cells(const SeqView& seq) {
  if (seq.blocks == 0) return;
  for (Tier tier : {Tier::kDevice, Tier::kHost}) {
    if (seq.kv_cells(tier) == 0) continue;
    ledger(tier).give_up(seq.own_kv_cells(tier));
    copy_change(seq, Verb::kDrop, {0, seq.known_tokens}, all_layers_, tier, Trigger::kNow);
  }
}

void PlanBuilder::preempt_and_drop(const SeqView& seq) {
  leave_running(seq);
  drop_cells(seq);
}

void PlanBuilder::preempt_and_keep(const SeqView& seq) {
  leave_running(seq);
}

bool PlanBuilder::preempt_and_offload(const SeqView& seq) {
  const uint32_t missing = cells_to_add(view_.geometry, seq, seq.blocks, {0, seq.ready_tokens}, all_layers_,
                                        Tier::kHost, /*tail=*/true);
  if (int64_t{missing} > host_.available() + state(seq).promised[static_cast<size_t>(Tier::kHost)])
    return false;
  leave_running(seq);
  if (seq.blocks == 0) return true;
  host_.take(missing);
  copy_change(seq, Verb::kAdd, {0, seq.ready_tokens}, all_layers_, Tier::kHost, Trigger::kNow);
  copy_change(seq, Verb::kDrop, {0, seq.ready_tokens}, all_layers_, Tier::kDevice, Trigger::kWhenReady);
  device_.give_up_later(seq.own_kv_cells(Tier::kDevice));
  return true;
}

void PlanBuilder::drop_waiting(const SeqView& seq) {
  Touched& t = touch(seq);
  t.gone = true;
  if (seq.blocks > 0) {
    device_.end_promise(t.promised[static_cast<size_t>(Tier::kDevice)]);
    host_.end_promise(t.promised[static_cast<size_t>(Tier::kHost)]);
  }
  drop_cells(seq);
}

bool PlanBuilder::add_copies(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier,
                             Trigger trigger) {
  tokens.end = std::min(tokens.end, state(seq).has_rows ? seq.ready_tokens : state(seq).ready_tokens);
  tokens.end -= tokens.end % view_.geometry.block_tokens;
  if (tokens.empty() || layers.empty()) return true;
  const uint32_t cells =
      cells_to_add(view_.geometry, seq, state(seq).blocks, tokens, layers, tier, /*tail=*/false);
  if (!take(state(seq), tier, cells)) return false;
  copy_change(seq, Verb::kAdd, tokens, layers, tier, trigger);
  return true;
}

void PlanBuilder::release(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier) {
  const uint32_t named = view_.geometry.blocks_for(tokens.size()) * layers.count();
  ledger(tier).give_up_later(std::min(named, seq.own_kv_cells(tier)));
  copy_change(seq, Verb::kDrop, tokens, layers, tier, Trigger::kWhenReady);
}

void PlanBuilder::fail(const SeqView& seq, std::string reason) {
  touch(seq).gone = true;
  plan_.failures.push_back({seq.id, std::move(reason)});
}

bool PlanBuilder::has_rows(SeqId id) const {
  auto it = touched_.find(id);
  return it != touched_.end() && it->second.has_rows;
}

bool PlanBuilder::preempted(SeqId id) const {
  auto it = touched_.find(id);
  return it != touched_.end() && it->second.gone;
}

}  // namespace kvasir
