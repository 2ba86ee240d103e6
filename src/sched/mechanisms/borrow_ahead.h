// Borrows memory from peers before it runs out, and returns memory that is not needed.
//
// Source: Infinite-LLM (Lin et al., arXiv 2401.02669v1), sections 4.3 and 4.4: an instance that runs short of
// blocks borrows from peers with room, before it has to preempt. Section 4.6: which part of a prompt will lie
// elsewhere is known beforehand, and has its place before the prompt's first row runs.
#pragma once

#include <cstdint>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

struct BorrowAhead {
  // The number of decode steps to have room for: this many tokens of every running sequence.
  uint32_t ahead_tokens = 256;
};

// Cells of the device that the running sequences will need within that many steps.
uint32_t cells_needed_soon(const View& view, const BorrowAhead& rule);

// Borrows the cells that the running sequences will need soon and that are neither free here nor borrowed,
// and all that the first waiting sequence needs beyond the device. If that is nothing, returns cells that are
// not needed.
void borrow_ahead(const View& view, const BorrowAhead& rule, PlanBuilder& builder);

}  // namespace kvasir
