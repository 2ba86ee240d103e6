#include "sched/batch_policy.h"

#include "sched/mechanisms/break_standstill.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/turn_alone.h"

namespace kvasir {

StepPlan BatchPolicy::plan(const View& given) {
  const View& view = corrected(given);
  PlanBuilder builder(view);
  begin_step(view, builder);
  if (builder.planned_tokens() > 0 || take_turn_alone(view, builder)) return builder.take();
  plan_batch(view, builder);
  if (!stands_still(view, builder)) return builder.take();
  // It begins anew: an admission that came to nothing would keep the sequence from giving up its cells.
  const StepPlan idle = builder.take();
  PlanBuilder anew(view);
  anew.borrow(idle.borrow_cells);
  anew.give_back(idle.return_cells);
  anew.set_hints(idle.hints);
  for (const Reason& reason : idle.reasons) anew.because(reason);
  break_standstill(view, in_order(view), anew);
  return anew.take();
}

std::vector<const SeqView*> BatchPolicy::in_order(const View& view) const {
  return by_arrival(view.running);
}

}  // namespace kvasir
