// Small views for tests of plans: blocks of 16 tokens, two layer groups, one cell of KV to a slab.
#pragma once

#include <algorithm>
#include <cstdint>

#include "contract/view.h"

namespace kvasir::test {

constexpr uint32_t kViewBlock = 16;
constexpr uint32_t kViewGroups = 2;

// `free_blocks` of `total_blocks` are free; nothing is idle or promised, nothing is in flight, and there is
// no tier but the device's.
inline View make_view(uint32_t total_blocks, uint32_t free_blocks) {
  View view;
  view.geometry = {kViewBlock, 2 * kViewGroups, 2, 8};
  view.device.per_slab[0] = 1;
  view.device.spare_slabs = free_blocks * kViewGroups;
  view.device.slabs = total_blocks * kViewGroups;
  view.next_step = StepId{1};
  return view;
}

// Of a device of 50 blocks, for steps of so many tokens.
inline View view_with_budget(uint32_t tokens, uint32_t free_blocks) {
  View view = make_view(50, free_blocks);
  view.limits.max_num_batched_tokens = tokens;
  return view;
}

// So many blocks more can be had, by evicting them.
inline void set_idle(View& view, uint32_t blocks) {
  view.device.spare_slabs += blocks * kViewGroups;
}
inline void set_pinned(View& view, uint32_t blocks) {
  view.device.coming[0] = blocks * kViewGroups;
}
// Promised to sequences of the view, out of what is free.
inline void set_promised(View& view, uint32_t blocks) {
  view.device.promised[0] = blocks * kViewGroups;
}
// The host tier has so many blocks.
inline void set_host(View& view, uint32_t total_blocks, uint32_t free_blocks) {
  view.host.per_slab[0] = 1;
  view.host.spare_slabs = free_blocks * kViewGroups;
  view.host.slabs = total_blocks * kViewGroups;
}
// The stage ring has room for one layer of so many blocks.
inline void set_ring(View& view, uint32_t blocks) {
  view.stage_blocks = blocks;
}

// Of what a sequence holds on a tier, in cells; no other shares it.
inline void set_cells(SeqView& s, Tier tier, uint32_t cells) {
  s.cells[static_cast<size_t>(Form::kKv)][static_cast<size_t>(tier)] = cells;
  s.own_cells[static_cast<size_t>(Form::kKv)][static_cast<size_t>(tier)] = cells;
}

// Waits, arrived at time `id`, and may adopt `cached` tokens, of whose blocks `idle` are idle.
inline SeqView waiting_seq(uint64_t id, uint32_t prompt, uint32_t cached = 0, uint32_t idle = 0) {
  SeqView s;
  s.id = SeqId{id};
  s.arrival = static_cast<Nanos>(id);
  s.prompt_tokens = prompt;
  s.known_tokens = prompt;
  s.max_total_tokens = prompt + 100;
  s.cached_tokens = cached;
  s.cached_resident_cells = cached / kViewBlock * kViewGroups;
  s.cached_idle[0][0] = idle * kViewGroups;
  s.device_groups = LayerSet::all(kViewGroups);
  return s;
}

// Runs with [0, ready) in blocks of its own, all of them on the device.
inline SeqView running_seq(uint64_t id, uint32_t prompt, uint32_t known, uint32_t ready) {
  SeqView s = waiting_seq(id, prompt);
  s.known_tokens = known;
  s.ready_tokens = ready;
  s.blocks = (ready + kViewBlock - 1) / kViewBlock;
  s.resident_blocks = s.blocks;
  set_cells(s, Tier::kDevice, s.blocks * kViewGroups);
  return s;
}

// Decodes: all but its newest token is ready.
inline SeqView decoding_seq(uint64_t id, uint32_t prompt, uint32_t known) {
  return running_seq(id, prompt, known, known - 1);
}

// Was preempted; all of [0, ready) is on the host and nothing on the device.
inline SeqView swapped_seq(uint64_t id, uint32_t prompt, uint32_t known, uint32_t ready) {
  SeqView s = running_seq(id, prompt, known, ready);
  s.preemptions = 1;
  set_cells(s, Tier::kHost, s.blocks * kViewGroups);
  set_cells(s, Tier::kDevice, 0);
  s.device_groups = {};
  s.resident_blocks = 0;
  s.tail_resident = ready % kViewBlock == 0;
  return s;
}

// Streams: its full blocks are on the host, and on the device is the one that is not full, if there is one.
inline SeqView streaming_seq(uint64_t id, uint32_t prompt, uint32_t known, uint32_t ready) {
  SeqView s = running_seq(id, prompt, known, ready);
  const uint32_t tail = ready % kViewBlock == 0 ? 0 : 1;
  set_cells(s, Tier::kHost, (s.blocks - tail) * kViewGroups);
  set_cells(s, Tier::kDevice, tail * kViewGroups);
  s.resident_blocks = tail;
  if (s.blocks > tail) s.device_groups = {};
  return s;
}

}  // namespace kvasir::test
