// What a policy sees. Kept up to date by deltas; never rebuilt from the cells.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "contract/frame_budget.h"
#include "contract/geometry.h"
#include "contract/ids.h"
#include "contract/layer_set.h"

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
  // K and V of [0, ready_tokens) are held in all layers, on whatever tier, or will be when the steps in
  // flight end.
  uint32_t ready_tokens = 0;
  // Blocks that its table names.
  uint32_t blocks = 0;
  // Cells (a block of one layer group) of which it holds a copy, by form and tier: ready, or coming. And
  // those of them in which nobody else has an interest and that nothing uses: they come free if it gives them
  // up.
  std::array<std::array<uint32_t, kTiers>, kForms> cells{};
  std::array<std::array<uint32_t, kTiers>, kForms> own_cells{};
  // Of the cells on the device, those given up as soon as another copy is ready.
  uint32_t leaving_cells = 0;
  // The layer groups of which every block is on the device, and the least number of blocks that any has
  // there: of the group that has fewest, so many are to be staged when its rows run.
  LayerSet device_groups;
  uint32_t resident_blocks = 0;
  // The block that is not full yet is on the device in every group, or there is none.
  bool tail_resident = true;
  // Bytes of that block are on their way to another tier: no row may write to it.
  bool tail_busy = false;
  // It was deferred, and transfers that it waited for have not ended: running it would be waiting again.
  bool stalled = false;
  // How often in a row its rows were deferred.
  uint16_t deferrals = 0;
  // Transfers in flight for its copies.
  uint32_t transfers = 0;
  // A waiting sequence may adopt [0, cached_tokens) from blocks that exist already: whole blocks, on the
  // device in every layer, and never the last known token, whose logits are needed. Of those blocks
  // `cached_idle_blocks` are referenced by nobody, so that adopting them takes them from the idle frames.
  uint32_t cached_tokens = 0;
  uint32_t cached_idle_blocks = 0;
  // Cells that promises still hold for it, by tier.
  std::array<uint32_t, kTiers> promised_cells{};
  uint32_t preemptions = 0;
  // Steps in flight that hold rows of this sequence.
  uint32_t in_flight = 0;

  uint32_t kv_cells(Tier tier) const {
    return cells[static_cast<size_t>(Form::kKv)][static_cast<size_t>(tier)];
  }
  uint32_t own_kv_cells(Tier tier) const {
    return own_cells[static_cast<size_t>(Form::kKv)][static_cast<size_t>(tier)];
  }
  uint32_t promised(Tier tier) const { return promised_cells[static_cast<size_t>(tier)]; }
  // Every block is on the device in every layer group.
  bool resident() const { return resident_blocks == blocks; }
  uint32_t tokens_to_compute() const { return known_tokens - ready_tokens; }
  // Its next token is decoded, not prefilled: all but the newest token is ready.
  bool decoding() const { return ready_tokens + 1 == known_tokens && known_tokens > prompt_tokens; }
};
static_assert(sizeof(SeqView) <= 256);

// Settings that plans must respect.
struct PlanLimits {
  uint32_t max_num_seqs = 256;                // running at once
  uint32_t max_num_batched_tokens = 512;      // rows of a step
  uint32_t long_prefill_token_threshold = 0;  // largest prefill chunk of one sequence; 0: no bound of its own
  // Rows of prefill that may go beside decodes without making them wait for longer than the stall budget, as
  // measured so far; 0: no bound. The engine moves it.
  uint32_t max_prefill_beside_decodes = 0;
};

// What the link between the device and the host was measured to do.
struct LinkView {
  double bytes_per_s = 0;  // 0: nothing was moved yet
  double latency_s = 0;
  uint64_t queued_bytes = 0;
};

struct View {
  Nanos now = 0;
  StepId next_step{};
  CacheGeometry geometry;
  PlanLimits limits;
  FrameBudget device;
  FrameBudget host;
  // Blocks of which the stage ring holds one layer; 0: there is no ring.
  uint32_t stage_blocks = 0;
  // Transfers that have not ended. A plan may do nothing and wait for one.
  uint32_t transfers_in_flight = 0;
  LinkView link;
  // Steps submitted and not yet waited for. While it is not 0, frames that a plan gives up are not
  // available to that same plan.
  uint32_t steps_in_flight = 0;

  const FrameBudget& budget(Tier tier) const { return tier == Tier::kHost ? host : device; }
  // Cells of KV that a tier has in all.
  uint32_t total_cells(Tier tier) const {
    return budget(tier).total[static_cast<size_t>(FrameClass::kKvPlane)] / kFramesPerKvCell;
  }

  std::vector<SeqView> running;  // in the order of admission
  std::vector<SeqView> waiting;  // by arrival; a preempted sequence takes its old place again
};

}  // namespace kvasir
