// Gives every decoding sequence its next token; where blocks run out, the latest arrival is preempted.
//
// Source: vLLM (Kwon et al., SOSP 2023), section 4.5: sequences are served first come, first served, and the
// latest is preempted first. Used by every policy that preempts so.
#pragma once

#include <functional>
#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// The running sequences, earliest arrival first (ties by id).
std::vector<const SeqView*> by_arrival(const std::vector<SeqView>& sequences);

// Whether it decodes, and needs a block beyond those that it holds or is promised.
bool wants_block(const View& view, const SeqView& seq);
// Blocks that the running sequences need so; the second without those that the plan has given them.
uint32_t blocks_wanted(const View& view);
uint32_t blocks_wanted(const View& view, const PlanBuilder& builder);

// What happens to the cells of a sequence that is preempted.
enum class PreemptBy {
  kRecompute,  // given up
  kSwap,       // copied to the host; given up where the host has no room for them
};

// Plans a decode for each decoding sequence in `running`, in order. When there is no block for one, the last
// sequence of `running` that has no rows yet is preempted, until there is one or the sequence itself was the
// last. Returns how many were preempted.
//
// Three cases that the paper does not have. Where blocks will come free when steps or transfers in flight
// end, the sequence sits this step out, and none is preempted for it. A sequence that waits for a transfer of
// its own sits it out, too. And the first of `running` is never preempted: if the others shared their blocks,
// these count as free only in the next view, and it gets them then.
uint32_t decode_or_preempt(const std::vector<const SeqView*>& running, PlanBuilder& builder,
                           PreemptBy by = PreemptBy::kRecompute);

// Likewise, with `decode` to plan a decode: false, and nothing is planned, if there is no room for it.
uint32_t decode_or_preempt(const std::vector<const SeqView*>& running, PlanBuilder& builder, PreemptBy by,
                           const std::function<bool(const SeqView&)>& decode);
// And with `preempt` to preempt one.
uint32_t decode_or_preempt(const std::vector<const SeqView*>& running, PlanBuilder& builder,
                           const std::function<void(const SeqView&)>& preempt,
                           const std::function<bool(const SeqView&)>& decode);

}  // namespace kvasir
