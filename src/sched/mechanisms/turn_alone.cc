#include "sched/mechanisms/turn_alone.h"

namespace kvasir {

bool take_turn_alone(const View& view, PlanBuilder& builder) {
  const SeqView* most = nullptr;
  for (const SeqView& seq : view.running) {
    if (seq.deferrals < kDeferralsBeforeTurn || builder.preempted(seq.id) || !builder.can_run(seq)) continue;
    if (!most || seq.deferrals > most->deferrals) most = &seq;
  }
  if (!most) return false;
  if (most->decoding()) return builder.decode(*most);
  return builder.prefill(*most, view.limits.max_num_batched_tokens) > 0;
}

}  // namespace kvasir
