#include "sched/batch_policy.h"

#include "sched/mechanisms/break_standstill.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/turn_alone.h"

namespace kvasir {

StepPlan BatchPolicy::plan(const View& view) {
  PlanBuilder builder(view);
  begin_step(view, builder);
  if (builder.planned_tokens() > 0 || take_turn_alone(view, builder)) return builder.take();
  plan_batch(view, builder);
  if (stands_still(view, builder)) break_standstill(view, in_order(view), builder);
  return builder.take();
}

std::vector<const SeqView*> BatchPolicy::in_order(const View& view) const {
  return by_arrival(view.running);
}

}  // namespace kvasir
