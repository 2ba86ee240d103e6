// Asks peers for memory before it runs out, and gives back what is not needed.
//
// Source: Infinite-LLM (Lin et al., arXiv 2401.02669v1), sections 4.3 and 4.4: an instance that runs short of
// blocks borrows where there is room, before it has to preempt; section 4.6: which part of a prompt is to lie
// elsewhere is known beforehand, and has its place before the prompt's first row runs.
#pragma once

#include <cstdint>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

struct BorrowAhead {
  // Steps of decoding for which there is to be room: that many tokens of every running sequence.
  uint32_t ahead_tokens = 256;
};

// Cells of the device that the running sequences will need within that many steps.
uint32_t cells_needed_soon(const View& view, const BorrowAhead& rule);

// Borrows what the running sequences will need soon beyond what is free here and borrowed already, and all
// that the first waiting sequence needs beyond the device. If that is nothing, gives back what is not needed.
void borrow_ahead(const View& view, const BorrowAhead& rule, PlanBuilder& builder);

}  // namespace kvasir
