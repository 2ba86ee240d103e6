// Makes plans so: the only code that allocates and frees blocks on behalf of a plan.
#pragma once

#include "cache/kv_cache.h"
#include "contract/step.h"
#include "contract/step_plan.h"

namespace kvasir {

// Used by the engine's thread. The cache outlives it.
class Committer {
 public:
  explicit Committer(KvCache& cache) : cache_(cache) {}

  // Applies the plan's copy changes, adoptions, promises and rows, in this order, and resolves the rows to
  // frames and token ids. A preemption ends what is left of a promise; otherwise failures and preemptions
  // change no cell, and are the engine's. The caller fills in the slices' sampling parameters. A plan without
  // rows gives a step without slices, which is not to be submitted. REQUIRES: check_plan() accepts the plan
  // for the view of this moment.
  Step apply(const StepPlan& plan, StepId id);

 private:
  void add_slice(const Rows& rows, Step& step);

  KvCache& cache_;
};

}  // namespace kvasir
