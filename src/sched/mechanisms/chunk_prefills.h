// Prefills prompts in chunks, with the tokens that the decodes have left of the step's budget.
//
// Source: Sarathi-Serve (Agrawal et al., OSDI 2024), section 4.2 and Algorithm 3; DeepSpeed-FastGen's Dynamic
// SplitFuse (Holmes et al., 2024), section 3, composes a step in the same order.
//
//   symbol     here                                unit
//   tau        PlanLimits::max_num_batched_tokens  tokens of a step
//   n_t        PlanBuilder::planned_tokens()       tokens
//   c          chunk_room()                        tokens
#pragma once

#include <cstdint>
#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// The largest chunk that the rest of the budget allows; `threshold`: the largest of any chunk, 0: no bound.
uint32_t chunk_room(const View& view, const PlanBuilder& builder, uint32_t threshold);

// Gives the rest of the budget to prompts that have begun, in chunks, in the order of `running`.
void continue_chunks(const View& view, const std::vector<const SeqView*>& running, uint32_t threshold,
                     PlanBuilder& builder);

// Admits a waiting sequence with its first chunk. False if no budget is left, or fewer blocks are free than
// all its known tokens and `spare_blocks` need; then the caller should admit none behind it.
bool admit_chunk(const View& view, const SeqView& seq, uint32_t threshold, uint32_t spare_blocks,
                 PlanBuilder& builder);

}  // namespace kvasir
