// PlanBuilder: preemption, and adding and dropping copies.
#include <algorithm>
#include <utility>

#include "plan/plan_builder.h"
#include "plan/plan_trial.h"

namespace kvasir {

void PlanBuilder::stop_running(const SeqView& seq) {
  KV_CHECK(!movable(seq).bound, "seq={}", raw(seq.id));
  add(Preemption{seq.id});
  std::erase_if(plan_.promises, [&](const Promise& p) { return p.owner == seq.id; });
}

void PlanBuilder::drop_cells(const SeqView& seq, bool keep_x) {
  if (seq.blocks == 0) return;
  const auto drop_all = [&](Form form, Tier tier) {
    add(CopyChange{Verb::kDropAll, seq.id, {}, {}, form, tier, Trigger::kNow});
  };
  bool holds_copies = false;
  for (Form form : {Form::kKv, Form::kX}) {
    if (keep_x && form != Form::kKv) break;
    for (Tier tier : kAllTiers) {
      if (seq.held(form, tier) == 0) continue;
      drop_all(form, tier);
      holds_copies = true;
    }
  }
  // Otherwise it holds only its block table, without cells.
  if (!holds_copies && !keep_x) drop_all(Form::kKv, Tier::kDevice);
}

void PlanBuilder::preempt_and_drop(const SeqView& seq) {
  stop_running(seq);
  drop_cells(seq, /*keep_x=*/false);
  keep_for_creditors(seq);
}

void PlanBuilder::preempt_and_keep(const SeqView& seq) {
  stop_running(seq);
  keep_for_creditors(seq);
}

void PlanBuilder::preempt_and_keep_x(const SeqView& seq) {
  stop_running(seq);
  drop_cells(seq, /*keep_x=*/true);
  keep_for_creditors(seq);
}

bool PlanBuilder::preempt_and_offload(const SeqView& seq, const LayerSet& as_x) {
  KV_CHECK(!movable(seq).bound, "seq={}", raw(seq.id));
  if (seq.blocks > 0 && !has_memory(slower_, Form::kKv)) return false;
  const uint32_t b = view_.geometry.block_tokens;
  const uint32_t full = seq.ready_tokens / b;
  const uint32_t x_here = seq.held(Form::kX, Tier::kDevice);
  const uint32_t x_of_tail = full * b < seq.ready_tokens ? std::min(x_here, as_x.count()) : 0;
  const uint32_t fresh =
      as_x.empty() ? 0 : std::min(full, ceil_div(x_here - x_of_tail, view_.geometry.lasting_in(as_x)));
  const auto copy_away = [&](Interval tokens, const LayerSet& layers, Form form) {
    if (tokens.empty() || layers.empty()) return;
    add(CopyChange{Verb::kAdd, seq.id, tokens, layers, form, slower_, Trigger::kNow});
  };
  Trial trial(*this, {&seq});
  add(Preemption{seq.id});
  if (seq.blocks > 0) {
    copy_away({0, seq.ready_tokens}, all_layers_ - as_x, Form::kKv);
    copy_away({full * b, seq.ready_tokens}, as_x, Form::kKv);
    copy_away({(full - fresh) * b, full * b}, as_x, Form::kX);
  }
  if (!state_.fits(slower_)) return false;
  trial.keep();
  std::erase_if(plan_.promises, [&](const Promise& p) { return p.owner == seq.id; });
  keep_for_creditors(seq);
  if (seq.blocks == 0) return true;
  // Where X is on the device, K and V need not wait until X has left.
  add(CopyChange{Verb::kDrop,
                 seq.id,
                 {0, seq.ready_tokens},
                 all_layers_,
                 Form::kKv,
                 Tier::kDevice,
                 Trigger::kWhenReady});
  // All of it: in what is on its way to the slower tier K and V that leave take an interest again.
  if (full > 0 && !as_x.empty()) release(seq, {0, full * b}, as_x, Tier::kDevice, Form::kX);
  return true;
}

void PlanBuilder::drop_waiting(const SeqView& seq) {
  PlanState::Seq& s = movable(seq);
  KV_CHECK(!s.bound, "seq={}", raw(seq.id));
  s.stopped = true;
  drop_cells(seq, /*keep_x=*/false);
  keep_for_creditors(seq);
}

bool PlanBuilder::add_copies(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier,
                             Trigger trigger, Form form) {
  const PlanState::Seq& s = state_.seq(seq);
  tokens.end = std::min(tokens.end, s.has_rows ? seq.ready_tokens : s.ready_tokens);
  tokens.end -= tokens.end % view_.geometry.block_tokens;
  if (tokens.empty() || layers.empty()) return true;
  // The rows were planned with whole leaves at peers. A leaf that is partly on the device is staged.
  if (s.has_rows && s.peer_blocks > 0 && tier == Tier::kDevice && form == Form::kKv) return false;
  return try_copies(seq, tokens, layers, tier, trigger, form);
}

bool PlanBuilder::try_copies(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier,
                             Trigger trigger, Form form) {
  if (!has_memory(tier, form)) return false;
  Trial trial(*this, {&seq});
  add(CopyChange{Verb::kAdd, seq.id, tokens, layers, form, tier, trigger});
  if (!state_.fits(tier)) return false;
  trial.keep();
  return true;
}

void PlanBuilder::release(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier, Form form) {
  add(CopyChange{Verb::kDrop, seq.id, tokens, layers, form, tier, Trigger::kWhenReady});
}

void PlanBuilder::drop(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier, Form form) {
  tokens.end = std::min(tokens.end, seq.ready_tokens);
  tokens.end -= tokens.end % view_.geometry.block_tokens;
  if (tokens.empty() || layers.empty()) return;
  add(CopyChange{Verb::kDrop, seq.id, tokens, layers, form, tier, Trigger::kNow});
}

void PlanBuilder::fail(const SeqView& seq, std::string reason) {
  KV_CHECK(!movable(seq).bound, "seq={}", raw(seq.id));
  add(Failure{seq.id, std::move(reason)});
  std::erase_if(plan_.promises, [&](const Promise& p) { return p.owner == seq.id; });
  keep_for_creditors(seq);
}

}  // namespace kvasir
