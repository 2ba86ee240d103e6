// Small views for tests of plans: blocks of 16 tokens, two layer groups, one frame to a slab.
#pragma once

#include <cstdint>

#include "contract/view.h"

namespace kvasir::test {

constexpr uint32_t kViewBlock = 16;

// `free_blocks` of `total_blocks` are free; nothing is idle or promised, nothing is in flight.
inline View make_view(uint32_t total_blocks, uint32_t free_blocks) {
  View view;
  view.geometry = {kViewBlock, 4, 2, 8};
  const uint32_t per_block = view.geometry.kv_frames_per_block();
  view.device.per_slab[0] = 1;
  view.device.empty_slabs = free_blocks * per_block;
  view.device.total[0] = total_blocks * per_block;
  view.next_step = StepId{1};
  return view;
}

inline void set_idle(View& view, uint32_t blocks) {
  view.device.idle[0] = blocks * view.geometry.kv_frames_per_block();
}
inline void set_pinned(View& view, uint32_t blocks) {
  view.device.pinned[0] = blocks * view.geometry.kv_frames_per_block();
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
  s.cached_idle_blocks = idle;
  return s;
}

// Runs with [0, ready) in blocks of its own.
inline SeqView running_seq(uint64_t id, uint32_t prompt, uint32_t known, uint32_t ready) {
  SeqView s = waiting_seq(id, prompt);
  s.known_tokens = known;
  s.ready_tokens = ready;
  s.device_blocks = (ready + kViewBlock - 1) / kViewBlock;
  s.own_device_blocks = s.device_blocks;
  return s;
}

// Decodes: all but its newest token is ready.
inline SeqView decoding_seq(uint64_t id, uint32_t prompt, uint32_t known) {
  return running_seq(id, prompt, known, known - 1);
}

}  // namespace kvasir::test
