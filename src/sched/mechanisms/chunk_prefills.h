// Prompts in chunks, within a budget of tokens that decodes have drawn on first.
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

#include "contract/plan_builder.h"
#include "contract/view.h"

namespace kvasir {

// The largest chunk that what is left of the budget allows; `threshold`: a bound on any one, 0: none.
uint32_t chunk_room(const View& view, const PlanBuilder& builder, uint32_t threshold);

// Prefills that have begun take the rest of the budget, in the order of `running`.
void continue_chunks(const View& view, const std::vector<const SeqView*>& running, uint32_t threshold,
                     PlanBuilder& builder);

// Admits a waiting sequence with its first chunk. False, and nobody behind it is to be admitted, where no
// budget is left or its blocks, those of all that it knows beside `spare_blocks`, are not free.
bool admit_chunk(const View& view, const SeqView& seq, uint32_t threshold, uint32_t spare_blocks,
                 PlanBuilder& builder);

}  // namespace kvasir
