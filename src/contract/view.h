// What a policy sees. Kept up to date by deltas; never rebuilt from the cells.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "contract/frame_budget.h"
#include "contract/geometry.h"
#include "contract/ids.h"

namespace kvasir {

// One sequence. All lengths are in tokens.
struct SeqView {
  SeqId id{};
  int32_t priority = 0;  // lower runs first
  Nanos arrival = 0;
  Nanos first_token_time = 0;  // 0: none yet
  Nanos last_token_time = 0;   // 0: none yet

  uint32_t prompt_tokens = 0;
  // Prompt and generated tokens, with those that steps in flight are about to sample.
  uint32_t known_tokens = 0;
  // The sequence ends at this length at the latest (prompt and output).
  uint32_t max_total_tokens = 0;
  // K and V of [0, ready_tokens) are on the device in all layers, or will be when the steps in flight end.
  uint32_t ready_tokens = 0;
  // Tokens held, by form and tier, in all layers together divided by the number of layer groups.
  std::array<std::array<uint32_t, kTiers>, kForms> held_tokens{};
  // Blocks on the device that this sequence references, and those that nobody else does.
  uint32_t device_blocks = 0;
  uint32_t own_device_blocks = 0;
  // A waiting sequence may adopt [0, cached_tokens) from blocks that exist already: whole blocks, and never
  // the last known token, whose logits are needed. Of those blocks `cached_idle_blocks` are referenced by
  // nobody, so that adopting them takes them from the idle frames.
  uint32_t cached_tokens = 0;
  uint32_t cached_idle_blocks = 0;
  // Blocks that a promise still holds for it.
  uint32_t promised_blocks = 0;
  uint32_t preemptions = 0;
  // Steps in flight that hold rows of this sequence.
  uint32_t in_flight = 0;

  uint32_t tokens_to_compute() const { return known_tokens - ready_tokens; }
  // Its next token is decoded, not prefilled: all but the newest token is ready.
  bool decoding() const { return ready_tokens + 1 == known_tokens && known_tokens > prompt_tokens; }
};
static_assert(sizeof(SeqView) <= 256);

// Settings that plans must respect; constant while the engine runs.
struct PlanLimits {
  uint32_t max_num_seqs = 256;                // running at once
  uint32_t max_num_batched_tokens = 512;      // rows of a step
  uint32_t long_prefill_token_threshold = 0;  // largest prefill chunk of one sequence; 0: no bound of its own
};

struct View {
  Nanos now = 0;
  StepId next_step{};
  CacheGeometry geometry;
  PlanLimits limits;
  FrameBudget device;
  // Steps submitted and not yet waited for. While it is not 0, frames that a plan gives up are not
  // available to that same plan.
  uint32_t steps_in_flight = 0;

  std::vector<SeqView> running;  // in the order of admission
  std::vector<SeqView> waiting;  // by arrival; a preempted sequence takes its old place again
};

}  // namespace kvasir
