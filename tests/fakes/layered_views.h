// Views of sequences with some layers on the device and the others on the host: blocks of 16 tokens, four
// layer groups of two layers each.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "fakes/views.h"

namespace kvasir::test {

constexpr uint32_t kLayerGroups = 4;

inline LayerSet layers(std::initializer_list<uint32_t> groups) {
  LayerSet set;
  for (uint32_t g : groups) set.add(g);
  return set;
}

// So many cells are free, of 400 on each tier; the ring passes 20 blocks. A cell has 512 bytes: K and V of 16
// tokens in two layers, of 8 bytes each.
inline View layered_view(uint32_t device_free, uint32_t host_free) {
  View view = make_view(0, 0);
  view.geometry = {kViewBlock, 2 * kLayerGroups, 2, 8};
  view.device.spare_slabs = device_free;
  view.device.slabs = 400;
  view.host.per_slab[0] = 1;
  view.host.spare_slabs = host_free;
  view.host.slabs = 400;
  set_ring(view, 20);
  return view;
}

// Waits and holds nothing.
inline SeqView layered_waiting(uint64_t id, uint32_t prompt, uint32_t cached = 0) {
  SeqView s = waiting_seq(id, prompt, cached);
  s.cached_resident_cells = cached / kViewBlock * kLayerGroups;
  s.device_groups = LayerSet::all(kLayerGroups);
  return s;
}

// Decodes. Its full blocks are on the device in the groups `kept` and on the host in the others; the block
// that is not full is on the device.
inline SeqView layered_seq(uint64_t id, uint32_t prompt, uint32_t known, const LayerSet& kept) {
  SeqView s = decoding_seq(id, prompt, known);
  const uint32_t full = s.ready_tokens / kViewBlock;
  const uint32_t tail = s.blocks - full;
  set_cells(s, Tier::kDevice, full * kept.count() + tail * kLayerGroups);
  set_cells(s, Tier::kHost, full * (kLayerGroups - kept.count()));
  const bool all = kept == LayerSet::all(kLayerGroups);
  s.device_groups = kept;
  s.resident_blocks = all ? s.blocks : tail;
  return s;
}

inline SeqView layered_resident(uint64_t id, uint32_t prompt, uint32_t known) {
  return layered_seq(id, prompt, known, LayerSet::all(kLayerGroups));
}

// Was preempted; all that it has is on the host.
inline SeqView layered_swapped(uint64_t id, uint32_t prompt, uint32_t known, uint32_t ready) {
  SeqView s = swapped_seq(id, prompt, known, ready);
  set_cells(s, Tier::kHost, s.blocks * kLayerGroups);
  return s;
}

}  // namespace kvasir::test
