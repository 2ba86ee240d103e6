// Admits waiting prompts whole, first come, first served, while the blocks of all of it are free.
//
// Source: vLLM 0.5, Scheduler._schedule_prefills and BlockSpaceManagerV1 (watermark = 0.01). Used by every
// policy that admits so.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Blocks, a hundredth of all, that an admission leaves free: without them it would soon cause a preemption.
uint32_t admission_watermark(const View& view);
// Blocks that the decodes of the running sequences wait for. With a step in flight, or transfers, those of a
// preempted sequence come free later than the decode for which they are meant: without this, the sequence
// would be admitted into them again.
uint32_t awaited_blocks(const View& view);

// Plans whole prompts of sequences that wait and hold nothing, in order, within the token budget (a prompt
// larger than that goes alone). True if any was planned: a step is either prefills or decodes.
bool admit_prompts(const View& view, PlanBuilder& builder);
// The same in the order of `waiting`, which are all the waiting sequences, or some.
bool admit_prompts(const View& view, const std::vector<const SeqView*>& waiting, PlanBuilder& builder);

}  // namespace kvasir
