// Admits whole waiting prompts, first come, first served, while all blocks of the next prompt are free.
//
// Source: vLLM 0.5, Scheduler._schedule_prefills and BlockSpaceManagerV1 (watermark = 0.01). Used by every
// policy that admits in this way.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// The blocks (a hundredth of all) that an admission leaves free: without them it would soon cause a
// preemption.
uint32_t admission_watermark(const View& view);
// The blocks that decodes of running sequences wait for. With a step or transfers in flight, the blocks of a
// preempted sequence become free later than the decode that needs them is planned. Unless an admission leaves
// these blocks, the preempted sequence would take them again.
uint32_t awaited_blocks(const View& view);

// Plans whole prompts of sequences that wait and hold nothing, in order, within the token budget (a larger
// prompt goes alone). True if any was planned: a step is either prefills or decodes.
bool admit_prompts(const View& view, PlanBuilder& builder);
// The same in the order of `waiting`: all the waiting sequences, or some of them.
bool admit_prompts(const View& view, const std::vector<const SeqView*>& waiting, PlanBuilder& builder);

}  // namespace kvasir
