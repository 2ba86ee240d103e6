#include "sched/mechanisms/turn_alone.h"

#include <algorithm>

namespace kvasir {

bool take_turn_alone(const View& view, PlanBuilder& builder) {
  const SeqView* most = nullptr;
  for (const SeqView& seq : view.running) {
    if (seq.deferrals < kDeferralsBeforeTurn || builder.preempted(seq.id) || !builder.can_run(seq)) continue;
    if (!most || seq.deferrals > most->deferrals) most = &seq;
  }
  if (!most) return false;
  if (most->decoding()) return builder.decode(*most);
  // A chunk whose transfers came too late would be too long again: halve it with each deferral.
  const uint32_t again = std::min<uint32_t>(most->deferrals - kDeferralsBeforeTurn, 16);
  const uint32_t budget = view.limits.max_num_batched_tokens;
  return builder.prefill(*most, std::max(budget >> again, std::min(budget, view.geometry.block_tokens))) > 0;
}

}  // namespace kvasir
