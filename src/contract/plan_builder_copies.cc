// PlanBuilder: preemption, and copies that come and go.
#include <algorithm>
#include <utility>
#include <vector>

#include "contract/plan_builder.h"

namespace kvasir {

void PlanBuilder::leave_running(const SeqView& seq) {
  Touched& t = touch(seq);
  KV_CHECK(!t.in_promises, "seq={}", raw(seq.id));
  t.gone = true;
  --running_seqs_;
  end_own_promises(seq, t);
  plan_.preemptions.push_back({seq.id});
}

void PlanBuilder::drop_cells(const SeqView& seq, bool keep_x) {
  if (seq.blocks == 0) return;
  const size_t before = plan_.copies.size();
  for (Form form : {Form::kKv, Form::kX, Form::kH}) {
    if (keep_x && form != Form::kKv) break;
    for (Tier tier : kAllTiers) {
      if (seq.held(form, tier) == 0) continue;
      ledger(tier).give_up(seq.own(form, tier), form);
      copy_change(seq, Verb::kDrop, {0, seq.known_tokens}, all_layers_, form, tier, Trigger::kNow);
    }
  }
  if (plan_.copies.size() > before || keep_x) return;
  // It holds nothing but the names of its blocks.
  copy_change(seq, Verb::kDrop, {0, seq.known_tokens}, all_layers_, Form::kKv, Tier::kDevice, Trigger::kNow);
}

void PlanBuilder::preempt_and_drop(const SeqView& seq) {
  leave_running(seq);
  drop_cells(seq, /*keep_x=*/false);
  keep_for_creditors(seq);
}

void PlanBuilder::preempt_and_keep(const SeqView& seq) {
  leave_running(seq);
  keep_for_creditors(seq);
}

void PlanBuilder::preempt_and_keep_x(const SeqView& seq) {
  leave_running(seq);
  drop_cells(seq, /*keep_x=*/true);
  keep_for_creditors(seq);
}

bool PlanBuilder::preempt_and_offload(const SeqView& seq, const LayerSet& as_x) {
  const uint32_t b = view_.geometry.block_tokens;
  const uint32_t full = seq.ready_tokens / b;
  struct Part {
    Interval tokens;
    LayerSet layers;
    Form form = Form::kKv;
    uint32_t missing = 0;  // cells
  };
  std::vector<Part> parts = {{{0, seq.ready_tokens}, all_layers_ - as_x}};
  const uint32_t x_here = seq.held(Form::kX, Tier::kDevice);
  const uint32_t x_of_tail = full * b < seq.ready_tokens ? std::min(x_here, as_x.count()) : 0;
  const uint32_t fresh = as_x.empty() ? 0 : std::min(full, ceil_div(x_here - x_of_tail, as_x.count()));
  const Interval here = {(full - fresh) * b, full * b};
  parts.push_back({{full * b, seq.ready_tokens}, as_x});
  parts.push_back({here, as_x, Form::kX});
  std::erase_if(parts, [](const Part& p) { return p.tokens.empty() || p.layers.empty(); });
  const auto take_parts = [&](CellLedger& of) {
    for (const Part& p : parts) {
      of.take(p.missing, p.form);
      of.find(p.missing, p.form);
    }
  };
  for (Part& p : parts) {
    p.missing =
        cells_to_add(view_.geometry, seq, seq.blocks, p.tokens, p.layers, slower_, /*tail=*/true, p.form);
  }
  CellLedger after = ledger(slower_);
  after.end_promise(state(seq).promised[index_of(slower_)]);
  take_parts(after);
  if (!after.fits()) return false;
  leave_running(seq);
  keep_for_creditors(seq);
  if (seq.blocks == 0) return true;
  take_parts(ledger(slower_));
  for (const Part& p : parts) {
    copy_change(seq, Verb::kAdd, p.tokens, p.layers, p.form, slower_, Trigger::kNow);
  }
  // Where there is X on the device K and V need not wait for it to leave.
  copy_change(seq, Verb::kDrop, {0, seq.ready_tokens}, all_layers_, Form::kKv, Tier::kDevice,
              Trigger::kWhenReady);
  ledger(Tier::kDevice).give_up_later(seq.own_kv_cells(Tier::kDevice));
  // All of it: in what is on its way to the slower tier K and V that leave take an interest again.
  if (full > 0 && !as_x.empty()) release(seq, {0, full * b}, as_x, Tier::kDevice, Form::kX);
  return true;
}

void PlanBuilder::drop_waiting(const SeqView& seq) {
  Touched& t = touch(seq);
  KV_CHECK(!t.in_promises, "seq={}", raw(seq.id));
  t.gone = true;
  if (seq.blocks > 0) {
    for (Tier tier : kAllTiers) ledger(tier).end_promise(t.promised[index_of(tier)]);
  }
  drop_cells(seq, /*keep_x=*/false);
  keep_for_creditors(seq);
}

bool PlanBuilder::add_copies(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier,
                             Trigger trigger, Form form) {
  tokens.end = std::min(tokens.end, state(seq).has_rows ? seq.ready_tokens : state(seq).ready_tokens);
  tokens.end -= tokens.end % view_.geometry.block_tokens;
  if (tokens.empty() || layers.empty()) return true;
  // Of a leaf of which some is to be on the device the rest is staged.
  const bool breaks_leaves = tier == Tier::kDevice && form == Form::kKv && state(seq).peer_blocks > 0;
  if (breaks_leaves && state(seq).has_rows) return false;
  const uint32_t cells =
      cells_to_add(view_.geometry, seq, state(seq).blocks, tokens, layers, tier, /*tail=*/false, form);
  const CellLedger before = ledger(tier);
  const std::array<uint32_t, kTiers> promised = state(seq).promised;
  if (form == Form::kKv) {
    if (!take(state(seq), tier, cells)) return false;
  } else {
    if (ledger(tier).available(form) < cells) return false;
    ledger(tier).take(cells, form);
  }
  ledger(tier).find(cells, form);
  if (!ledger(tier).fits()) {
    ledger(tier) = before;
    state(seq).promised = promised;
    return false;
  }
  copy_change(seq, Verb::kAdd, tokens, layers, form, tier, trigger);
  Touched& t = state(seq);
  if (breaks_leaves) t.peer_blocks -= std::min(t.peer_blocks, view_.geometry.blocks_of_leaves(tokens));
  // What rows wait for is not staged beside it.
  if (trigger == Trigger::kBeforeLayer && !t.has_rows && covers_history(tokens, t)) {
    t.device_groups |= layers;
    if (t.device_groups == all_layers_) {
      if (seq.x_elsewhere()) t.x_elsewhere = t.blocks - t.resident;
      t.resident = t.blocks;
    }
  }
  return true;
}

// With the block that is not full, which is on the device.
bool PlanBuilder::covers_history(const Interval& tokens, const Touched& t) const {
  const uint32_t full = t.ready_tokens - t.ready_tokens % view_.geometry.block_tokens;
  return tokens.begin == 0 && tokens.end >= full && t.tail_resident;
}

void PlanBuilder::release(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier, Form form) {
  const uint32_t named = view_.geometry.blocks_for(tokens.size()) * layers.count();
  ledger(tier).give_up_later(std::min(named, seq.own(form, tier)), form);
  state(seq).releases = true;
  copy_change(seq, Verb::kDrop, tokens, layers, form, tier, Trigger::kWhenReady);
}

void PlanBuilder::drop(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier, Form form) {
  tokens.end = std::min(tokens.end, seq.ready_tokens);
  tokens.end -= tokens.end % view_.geometry.block_tokens;
  if (tokens.empty() || layers.empty()) return;
  const uint32_t named = view_.geometry.blocks_for(tokens.size()) * layers.count();
  ledger(tier).give_up_later(std::min(named, seq.own(form, tier)), form);
  copy_change(seq, Verb::kDrop, tokens, layers, form, tier, Trigger::kNow);
}

void PlanBuilder::fail(const SeqView& seq, std::string reason) {
  Touched& t = touch(seq);
  KV_CHECK(!t.in_promises, "seq={}", raw(seq.id));
  t.gone = true;
  end_own_promises(seq, t);
  keep_for_creditors(seq);
  plan_.failures.push_back({seq.id, std::move(reason)});
}

}  // namespace kvasir
