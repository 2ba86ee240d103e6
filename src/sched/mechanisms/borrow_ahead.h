// Asks peers for memory before there is none, and gives back what is of no use.
//
// Source: Infinite-LLM (Lin et al., arXiv 2401.02669v1), sections 4.3 and 4.4: an instance that runs short of
// blocks borrows where there is room, before it has to stop anybody; section 4.6: what of a prompt is to lie
// elsewhere is known beforehand, and has its place before the first row of it runs.
#pragma once

#include <cstdint>

#include "contract/plan_builder.h"
#include "contract/view.h"

namespace kvasir {

struct BorrowAhead {
  // Steps of decoding for which there is to be room: that many tokens of every running sequence.
  uint32_t ahead_tokens = 256;
};

// Cells of the device that the running sequences will need so soon.
uint32_t cells_needed_soon(const View& view, const BorrowAhead& rule);

// Borrows what `soon` cells need beyond what is free here and borrowed already, and all that the first
// waiting sequence needs beyond the device. If that is nothing, gives back what of it nobody needs.
void borrow_ahead(const View& view, const BorrowAhead& rule, PlanBuilder& builder);

}  // namespace kvasir
