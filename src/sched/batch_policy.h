// The base of the policies in sched/policies/: a policy decides what the next step computes, and the base
// keeps the two guarantees that no policy may break.
//
//  - A sequence whose transfers keep coming too late for the others gets a step of its own
//    (mechanisms/turn_alone.h), so that a slow link does not starve it.
//  - If the policy plans nothing and no progress will come from elsewhere, one sequence gives up its memory
//    (mechanisms/break_standstill.h), so that the others can go on.
#pragma once

#include <vector>

#include "contract/policy.h"
#include "plan/plan_builder.h"

namespace kvasir {

class BatchPolicy : public Policy {
 public:
  // corrected(); begin_step(); then either a step for one sequence alone or plan_batch(); then, if the plan
  // stands still, a preemption.
  StepPlan plan(const View& view) final;

  // Whether it keeps copies in form X under its settings (PolicyTraits::keeps_x).
  virtual bool keeps_x() const { return false; }

 private:
  // Called first for every step. The view by which the step is planned, until the next call: the same but for
  // its costs, which a policy may believe to be others.
  virtual const View& corrected(const View& view) { return view; }

  // Called next. Here a policy observes the view, and plans entries that belong in every
  // step, even in one for a sequence alone. If it plans rows, they are the step: plan_batch() is not called.
  virtual void begin_step(const View& /*view*/, PlanBuilder& /*builder*/) {}

  // Plans the step.
  virtual void plan_batch(const View& view, PlanBuilder& builder) = 0;

  // The running sequences in the order in which the policy serves them: to break a standstill, the last gives
  // up its memory first. Default: by arrival.
  virtual std::vector<const SeqView*> in_order(const View& view) const;
};

}  // namespace kvasir
