// Moves the oldest parts of long histories to borrowed memory when the device fills up, and brings back cells
// that are recalled.
//
// Source: Infinite-LLM (Lin et al., arXiv 2401.02669v1), section 4.3 (new blocks come from peers if there are
// none here) and 4.5 (lent blocks are recalled and swapped home). The paper puts *new* blocks at peers. Here
// the oldest leaves of attention move there, which no longer change, and new blocks take their place: the
// same amount lies at peers, and no row waits for a peer to write its own K and V.
#pragma once

#include <cstdint>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Copies whole leaves of running sequences to borrowed memory, those of the longest sequence first and its
// oldest first, and gives them up here when the copies are ready, until `cells` will become free. Returns how
// many will. Called before any row is planned.
uint32_t spill_to_peers(const View& view, uint32_t cells, PlanBuilder& builder);

// Copies the content of recalled cells to the device, as far as there is room beyond `spare` cells, and gives
// those cells up. Called before any row is planned.
void bring_home(const View& view, uint32_t spare, PlanBuilder& builder);

}  // namespace kvasir
