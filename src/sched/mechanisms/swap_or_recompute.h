// What happens to the cells of a preempted sequence: they are copied away and back, or recomputed.
//
// Source: CacheOpt, Section 3.5: two fitted curves over the length S,
//
//   L_r(S) = alpha_r S^beta_r + kappa_r S + epsilon_r      recomputation: CostModel::prefill_seconds()
//   L_s(S) = gamma_s S + delta_s                           swapping: CostModel::links, there and back
//
// The paper swaps beyond the length at which they cross. With a fast link they do not cross: swapping is
// cheaper at any length, or at none. So the two are compared for each sequence.
#pragma once

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Infinite where there is no slower tier, or the speed of the link to it is not known.
double swap_seconds(const View& view, const SeqView& seq);
// 0 where the costs are not known.
double recompute_seconds(const View& view, const SeqView& seq);

enum class PreemptionStrategy : uint8_t { kCheaper, kRecompute, kSwap };

// Preempts it by the strategy; where the slower tier has no room its cells are recomputed in any case.
// REQUIRES: as for PlanBuilder::preempt_and_drop()
void preempt_by(PreemptionStrategy strategy, const View& view, const SeqView& seq, PlanBuilder& builder);

}  // namespace kvasir
