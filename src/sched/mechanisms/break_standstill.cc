#include "sched/mechanisms/break_standstill.h"

#include "sched/mechanisms/decode_or_preempt.h"

namespace kvasir {

void break_standstill(const View& view, PlanBuilder& builder) {
  if (view.steps_in_flight > 0 || view.transfers_in_flight > 0 || !builder.idle()) return;
  if (!view.running.empty()) return builder.preempt_and_drop(*by_arrival(view.running).back());
  for (size_t i = view.waiting.size(); i-- > 0;) {
    const SeqView& seq = view.waiting[i];
    if (seq.blocks == 0 || builder.preempted(seq.id)) continue;
    return builder.drop_waiting(seq);
  }
}

}  // namespace kvasir
