#include "sched/mechanisms/turn_alone.h"

#include <algorithm>

namespace kvasir {
namespace {

// The running sequence that was deferred most often, if it may run now.
const SeqView* most_deferred(const View& view, const PlanBuilder& builder) {
  const SeqView* most = nullptr;
  for (const SeqView& seq : view.running) {
    if (seq.deferrals < kDeferralsBeforeTurn || builder.preempted(seq.id) || !builder.can_run(seq)) continue;
    if (!most || seq.deferrals > most->deferrals) most = &seq;
  }
  return most;
}

bool plan_alone(const View& view, const SeqView& seq, PlanBuilder& builder) {
  if (seq.decoding()) return builder.decode(seq);
  // A chunk whose transfers came too late would be too long again: halve it with each deferral.
  const uint32_t again = std::min<uint32_t>(seq.deferrals - kDeferralsBeforeTurn, 16);
  const uint32_t budget = view.limits.max_num_batched_tokens;
  return builder.prefill(seq, std::max(budget >> again, std::min(budget, view.geometry.block_tokens))) > 0;
}

}  // namespace

bool take_turn_alone(const View& view, PlanBuilder& builder) {
  const SeqView* most = most_deferred(view, builder);
  if (!most || !plan_alone(view, *most, builder)) return false;
  builder.because({.cause = Cause::kTurnAlone, .seq = most->id, .a = static_cast<double>(most->deferrals)});
  return true;
}

}  // namespace kvasir
