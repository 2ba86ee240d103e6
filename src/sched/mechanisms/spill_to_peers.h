// Moves the oldest of long histories to borrowed memory when the device fills up, and brings home what is
// recalled.
//
// Source: Infinite-LLM (Lin et al., arXiv 2401.02669v1), section 4.3 (new blocks are had from peers where
// there are none) and 4.5 (lent blocks are recalled and swapped home). The paper puts *new* blocks there;
// here the oldest leaves of attention go instead, which do not change any more, and the new blocks take their
// place: as much lies there in the end, and no row ever waits for a peer to write its own K and V.
#pragma once

#include <cstdint>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Copies whole leaves of running sequences to borrowed memory, those of the longest first and of each the
// oldest first, and gives them up here when they are there, until so many cells come free. Returns how many
// do. Before any row is planned.
uint32_t spill_to_peers(const View& view, uint32_t cells, PlanBuilder& builder);

// Copies what lies in cells that a peer wants back to the device, as far as there is room beyond `spare`
// cells, and gives those cells up. Before any row is planned.
void bring_home(const View& view, uint32_t spare, PlanBuilder& builder);

}  // namespace kvasir
