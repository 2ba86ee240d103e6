#include "sched/mechanisms/break_standstill.h"

#include "contract/plan_checker.h"
#include "sched/mechanisms/decode_or_preempt.h"

namespace kvasir {

namespace {

bool stuck(const View& view, const PlanBuilder& builder) {
  // A peer may still lend what is lacking, or give back what it has on loan.
  const bool asks = view.peers.asked > 0 || builder.borrows();
  const bool may_borrow = comes_back(view) || yields_to_peer(view) || (asks && !view.peers.nobody_lends);
  return view.steps_in_flight == 0 && view.transfers_in_flight == 0 && builder.idle() && !may_borrow;
}

}  // namespace

void break_standstill(const View& view, PlanBuilder& builder) {
  if (stuck(view, builder)) break_standstill(view, by_arrival(view.running), builder);
}

void break_standstill(const View& view, const std::vector<const SeqView*>& running, PlanBuilder& builder) {
  if (!stuck(view, builder)) return;
  // What is kept for whoever may ask is of no use to anyone.
  for (Tier tier : kAllTiers) builder.set_reserve(0, tier);
  for (size_t i = running.size(); i-- > 0;) {
    if (builder.can_stop(*running[i])) return builder.preempt_and_drop(*running[i]);
  }
  for (size_t i = view.waiting.size(); i-- > 0;) {
    const SeqView& seq = view.waiting[i];
    if (seq.blocks == 0 || builder.preempted(seq.id)) continue;
    return builder.drop_waiting(seq);
  }
}

}  // namespace kvasir
