// The resources that the admission of a waiting sequence takes. One type covers every case (new or with cells
// of its own; all on the device, partly elsewhere, or streaming), so that the accounting is the same for all.
#pragma once

#include <cstdint>
#include <optional>

#include "contract/interval.h"
#include "contract/layer_set.h"
#include "contract/view.h"
#include "plan/plan_state.h"

namespace kvasir {

// The request of an admission.
struct AdmitOptions {
  uint32_t spare_blocks = 0;  // blocks that must stay available
  uint32_t total_tokens = 0;  // length to promise room for; at least the known tokens
  // The layer groups with promised room for full blocks on the device, as in the rows to be planned
  // (RowOptions::kv). The other groups get promised room on the slower tier; cells cached or held there stay
  // there and are staged. Default: all, or those that streaming keeps on the device.
  std::optional<LayerSet> kv{};
  // The layer groups that keep X instead of K and V (RowOptions::x). They get no promised room, since
  // promises cover KV only. Cells cached in these groups keep their form. REQUIRES: `kv` is given and has
  // none of them
  LayerSet x{};
};

struct Admission {
  uint32_t adopted_blocks = 0;  // cached blocks that it adopts
  // The part of its history whose K and V come to the device before the layers that read them.
  Interval brought_back;
  // KV cells promised to it.
  uint32_t device_cells = 0;
  uint32_t slower_cells = 0;
  // Device cells that must be free in addition to those, without a promise.
  uint32_t free_device_cells = 0;
  // Blocks of one layer for which the stage ring must have room.
  uint32_t ring_blocks = 0;

  // For a sequence that holds no cells and adopts `adopted` blocks: all the cached ones, or none.
  static Admission of_new(const View& view, const PlanState::Seq& seq, uint32_t adopted,
                          const AdmitOptions& options);
  // For a sequence that holds cells: on the device, elsewhere, or both.
  static Admission of_held(const View& view, const PlanState::Seq& seq, const AdmitOptions& options);
};

// Cells of the slower tier that a sequence may still need in addition to those that it holds or is promised.
// A sequence that streams needs all blocks of its maximum length there except the last.
uint32_t slower_cells_to_come(const View& view, const SeqView& seq);

}  // namespace kvasir
