#include "contract/plan_builder.h"

#include <algorithm>
#include <utility>

namespace kvasir {

PlanBuilder::PlanBuilder(const View& view)
    : view_(view),
      all_layers_(LayerSet::all(view.geometry.groups())),
      ledger_(view),
      running_seqs_(static_cast<uint32_t>(view.running.size())) {}

PlanBuilder::Touched& PlanBuilder::touch(const SeqView& seq) {
  auto [it, inserted] = touched_.try_emplace(seq.id);
  if (inserted) {
    it->second.ready_tokens = seq.ready_tokens;
    it->second.blocks = seq.device_blocks;
    it->second.promised = seq.promised_blocks;
  }
  return it->second;
}

bool PlanBuilder::admit(const SeqView& seq, uint32_t spare_blocks) {
  if (running_seqs_ >= view_.limits.max_num_seqs) return false;
  const bool adopts = seq.device_blocks == 0 && seq.cached_tokens > 0;
  const uint32_t held = adopts ? seq.cached_tokens / view_.geometry.block_tokens : seq.device_blocks;
  const uint32_t covered = held + seq.promised_blocks;
  const uint32_t needed = view_.geometry.blocks_for(seq.known_tokens);
  const uint32_t new_blocks = needed > covered ? needed - covered : 0;
  BlockLedger after = ledger_;
  after.take(new_blocks);
  if (adopts) after.adopt(held, seq.cached_idle_blocks);
  if (after.available() < int64_t{spare_blocks}) return false;

  ledger_ = after;
  ++running_seqs_;
  Touched& t = touch(seq);
  KV_CHECK(!t.has_rows && !t.gone, "seq={}", raw(seq.id));
  t.ready_tokens = adopts ? seq.cached_tokens : seq.ready_tokens;
  t.blocks = held;
  t.promised = seq.promised_blocks + new_blocks;
  if (adopts) plan_.adoptions.push_back({seq.id, seq.cached_tokens});
  if (new_blocks > 0) plan_.promises.push_back({seq.id, new_blocks, Promise::Kind::kOwn});
  return true;
}

bool PlanBuilder::add_rows(const SeqView& seq, uint32_t end, RowKind kind) {
  Touched& t = touch(seq);
  KV_CHECK(!t.has_rows && !t.gone, "seq={}", raw(seq.id));
  const uint32_t needed = view_.geometry.blocks_for(end);
  const uint32_t new_blocks = needed > t.blocks ? needed - t.blocks : 0;
  const uint32_t from_promise = std::min(new_blocks, t.promised);
  const uint32_t from_pool = new_blocks - from_promise;
  if (from_pool > 0 && int64_t{from_pool} > ledger_.available()) return false;

  ledger_.take(from_pool);
  t.promised -= from_promise;
  t.blocks += new_blocks;
  t.has_rows = true;
  Rows rows;
  rows.seq = seq.id;
  rows.tokens = {t.ready_tokens, end};
  rows.layers = all_layers_;
  rows.kind = kind;
  rows.writes.kv = all_layers_;
  rows.samples = end == seq.known_tokens;
  planned_tokens_ += rows.tokens.size();
  t.ready_tokens = end;
  plan_.rows.push_back(std::move(rows));
  return true;
}

uint32_t PlanBuilder::prefill(const SeqView& seq, uint32_t max_tokens) {
  const Touched& t = touch(seq);
  const uint32_t begin = t.ready_tokens;
  const int64_t blocks = int64_t{t.blocks} + t.promised + std::max<int64_t>(ledger_.available(), 0);
  const int64_t memory_end = blocks * view_.geometry.block_tokens;
  const auto end =
      static_cast<uint32_t>(std::min({int64_t{seq.known_tokens}, int64_t{begin} + max_tokens, memory_end}));
  if (end <= begin) return 0;
  const RowKind kind = begin < seq.prompt_tokens ? RowKind::kPrefill : RowKind::kRecompute;
  return add_rows(seq, end, kind) ? end - begin : 0;
}

bool PlanBuilder::decode(const SeqView& seq) {
  KV_CHECK(seq.decoding(), "seq={} ready={} known={}", raw(seq.id), seq.ready_tokens, seq.known_tokens);
  return add_rows(seq, seq.known_tokens, RowKind::kDecode);
}

void PlanBuilder::leave_running(const SeqView& seq) {
  Touched& t = touch(seq);
  KV_CHECK(!t.has_rows && !t.gone, "seq={}", raw(seq.id));
  t.gone = true;
  --running_seqs_;
  ledger_.end_promise(t.promised);
  plan_.preemptions.push_back({seq.id});
}

void PlanBuilder::drop_cells(const SeqView& seq) {
  if (seq.device_blocks == 0) return;
  ledger_.give_up(seq.own_device_blocks);
  CopyChange drop;
  drop.verb = Verb::kDrop;
  drop.seq = seq.id;
  drop.tokens = {0, seq.known_tokens};
  drop.layers = all_layers_;
  plan_.copies.push_back(drop);
}

void PlanBuilder::preempt_and_drop(const SeqView& seq) {
  leave_running(seq);
  drop_cells(seq);
}

void PlanBuilder::preempt_and_keep(const SeqView& seq) {
  leave_running(seq);
}

void PlanBuilder::drop_waiting(const SeqView& seq) {
  Touched& t = touch(seq);
  KV_CHECK(!t.has_rows && !t.gone, "seq={}", raw(seq.id));
  t.gone = true;
  if (seq.device_blocks > 0) ledger_.end_promise(t.promised);
  drop_cells(seq);
}

void PlanBuilder::fail(const SeqView& seq, std::string reason) {
  Touched& t = touch(seq);
  KV_CHECK(!t.has_rows && !t.gone, "seq={}", raw(seq.id));
  t.gone = true;
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
