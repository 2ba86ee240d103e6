// Gives every decoding sequence its next token; where blocks run out, the latest arrival pays.
//
// Source: vLLM (Kwon et al., SOSP 2023), section 4.5: sequences are served first come, first served, and the
// latest is preempted first. Used by every policy that preempts so.
#pragma once

#include <functional>
#include <vector>

#include "contract/plan_builder.h"
#include "contract/view.h"

namespace kvasir {

// The running sequences, earliest arrival first (ties by id).
std::vector<const SeqView*> by_arrival(const std::vector<SeqView>& sequences);

// It decodes, and needs a block beyond those that it has.
bool wants_block(const View& view, const SeqView& seq);
// The blocks that the decodes of the running sequences so need; and without those that the plan has given
// them.
uint32_t blocks_wanted(const View& view);
uint32_t blocks_wanted(const View& view, const PlanBuilder& builder);

// What becomes of the cells of a sequence that is preempted.
enum class PreemptBy {
  kRecompute,  // given up
  kSwap,       // copied to the host; given up where the host has no room for them
};

// Plans a decode for each decoding sequence in `running`, in order. When there is no block for one, the last
// sequence of `running` that has no rows yet is preempted, until there is one or the sequence itself was the
// last. Returns how many were preempted.
//
// Three cases that the paper does not have. Where blocks come free when steps or transfers in flight end, the
// sequence sits this step out and nobody is preempted for it. One that waits for a transfer of its own sits
// it out as well. And the earliest sequence is never preempted: should the blocks of all the others not count
// yet because they shared them, it has them in the next step.
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
