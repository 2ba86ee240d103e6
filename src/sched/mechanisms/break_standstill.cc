#include "sched/mechanisms/break_standstill.h"

#include "plan/plan_checker.h"

namespace kvasir {

bool stands_still(const View& view, const PlanBuilder& builder) {
  return builder.idle() && !help_may_come(view, builder.borrows());
}

void break_standstill(const View& view, const std::vector<const SeqView*>& running, PlanBuilder& builder) {
  for (Tier tier : kAllTiers) builder.set_reserve(0, tier);
  for (size_t i = running.size(); i-- > 0;) {
    if (!builder.can_stop(*running[i])) continue;
    builder.because({Cause::kStandstill, running[i]->id});
    return builder.preempt_and_drop(*running[i]);
  }
  for (size_t i = view.waiting.size(); i-- > 0;) {
    const SeqView& seq = view.waiting[i];
    if (seq.blocks == 0 || builder.preempted(seq.id)) continue;
    return builder.drop_waiting(seq);
  }
}

}  // namespace kvasir
