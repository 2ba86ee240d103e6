// Views of sequences that hold cells as X as well, or have dropped some. Blocks have 16 tokens, and two
// cells.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "fakes/plan_checks.h"
#include "fakes/views.h"
#include "plan/plan_builder.h"
#include "plan/plan_checker.h"

namespace kvasir::test {

// One cell of KV to a slab, or two of X; also on the host, if there is one.
inline View forms_view(uint32_t total_blocks, uint32_t free_blocks, uint32_t ring) {
  View view = make_view(total_blocks, free_blocks);
  view.geometry.x_bytes_per_token_layer = 8;
  view.device.per_slab = view.host.per_slab = {1, 2};
  set_ring(view, ring);
  return view;
}
inline void with_host(View& view, uint32_t total_blocks, uint32_t free_blocks) {
  set_host(view, total_blocks, free_blocks);
  view.host.per_slab = {1, 2};
}

inline void hold(SeqView& s, Form form, Tier tier, uint32_t cells) {
  s.cells[index_of(form)][index_of(tier)] = cells;
  s.own_cells[index_of(form)][index_of(tier)] = cells;
}

// Decodes at 39 of 40: of its three blocks the last one is on the device, and of the first two everything
// from layer group `first` on is dropped.
inline SeqView dropped_seq(uint64_t id, uint32_t first = 0) {
  SeqView s = decoding_seq(id, 20, 40);
  set_cells(s, Tier::kDevice, 2 + 2 * first);
  s.resident_blocks = 1;
  s.device_groups = LayerSet::all(first);
  s.dropped = {0, 32};
  s.dropped_first_group = static_cast<uint8_t>(first);
  s.dropped_end_group = kViewGroups;
  s.dropped_cells = 2 * (kViewGroups - first);
  return s;
}

inline LayerSet group(uint32_t g) {
  LayerSet set;
  set.add(g);
  return set;
}

}  // namespace kvasir::test
