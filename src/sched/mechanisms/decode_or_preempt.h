// Plans the next token of every decoding sequence, and preempts the latest arrival when blocks run out.
//
// Source: vLLM (Kwon et al., SOSP 2023), section 4.5: sequences are served first come, first served, and the
// latest is preempted first. Used by every policy that preempts in this way.
#pragma once

#include <functional>
#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// The running sequences, earliest arrival first (ties by id).
std::vector<const SeqView*> by_arrival(const std::vector<SeqView>& sequences);

// Whether it decodes, and needs a block that it neither holds nor is promised.
bool wants_block(const View& view, const SeqView& seq);
// The number of such blocks over all running sequences; the second form without those that have rows or
// are preempted in the plan.
uint32_t blocks_wanted(const View& view);
uint32_t blocks_wanted(const View& view, const PlanBuilder& builder);

// Why `seq` is preempted for the next token of `other`, by a rule that Cause names (kArrivedLast and others).
inline Reason preempted_for_token(Cause rule, const SeqView& seq, const SeqView& other) {
  return {rule, seq.id, other.id, /*blocks=*/1};
}

// What happens to the cells of a sequence that is preempted.
enum class PreemptBy {
  kRecompute,  // given up
  kSwap,       // copied to the host; given up if the host has no room for them
};

// By which rule a sequence is the last to be served: one of the causes for whose sake `other` needs blocks.
// Default: kArrivedLast.
using VictimRule = std::function<Cause(const SeqView&)>;

// Plans a decode for each decoding sequence in `running`, in order. If there is no block for one, preempts
// the last sequence of `running` that has no rows yet, until there is a block or the sequence itself was the
// last. Returns the number of preemptions.
//
// Three cases are not in the paper. If blocks will become free when steps or transfers in flight end, the
// sequence is left out of this step, and none is preempted for it. A sequence that waits for a transfer of
// its own is left out, too. And the first of `running` is never preempted: if the others shared their blocks,
// these count as free only in the next view, and it gets them then.
uint32_t decode_or_preempt(const std::vector<const SeqView*>& running, PlanBuilder& builder,
                           PreemptBy by = PreemptBy::kRecompute, const VictimRule& rule = {});

// The same with `decode` as the function that plans a decode, which plans nothing and returns false without
// room, and `preempt` as the one that preempts a sequence for another and gives the reason.
using Preempt = std::function<void(const SeqView& seq, const SeqView& other)>;
uint32_t decode_or_preempt(const std::vector<const SeqView*>& running, PlanBuilder& builder,
                           const Preempt& preempt, const std::function<bool(const SeqView&)>& decode);

}  // namespace kvasir
