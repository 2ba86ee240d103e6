// The state that a policy sees. Deltas keep it up to date; it is never rebuilt from the cells.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "contract/cell_capacity.h"
#include "contract/cost_model.h"
#include "contract/frame_budget.h"
#include "contract/geometry.h"
#include "contract/ids.h"
#include "contract/interval.h"
#include "contract/layer_set.h"
#include "contract/length_predictor.h"
#include "contract/slo.h"
#include "contract/step_plan.h"

namespace kvasir {

// What the cache reports about one sequence: its history and its cells (a cell is one block of one layer
// group). Lengths are in tokens.
struct SequenceCells {
  // Tokens [0, ready_tokens) have been computed, or will be when the steps in flight end: each of their cells
  // has K and V, or X, on some tier unless a plan has dropped it.
  uint32_t ready_tokens = 0;
  // Blocks in its block table.
  uint32_t blocks = 0;
  // `cells`: the cells of which it holds a copy, by form and tier; the copy is ready or on its way.
  // `own_cells`: those of them that no other sequence holds and no step or transfer uses. They become free if
  // the sequence gives them up.
  std::array<std::array<uint32_t, kTiers>, kForms> cells{};
  std::array<std::array<uint32_t, kTiers>, kForms> own_cells{};
  // KV cells on the device that are given up as soon as another copy is ready.
  uint32_t leaving_cells = 0;
  // `device_groups`: the layer groups with every block on the device. `resident_blocks`: the number of blocks
  // on the device in the layer group that has the fewest there. The other blocks of that group must be staged
  // when the sequence's rows run.
  LayerSet device_groups;
  uint32_t resident_blocks = 0;
  // Used where cells are borrowed: the first block that has K and V on the device in some layer group, or the
  // block count if there is none.
  uint32_t first_device_block = 0;
  // The smallest rectangle, tokens x layer groups [first, end), that contains all dropped cells. A dropped
  // cell has neither K and V nor X. `dropped_cells` cells of the rectangle are dropped. To recompute them,
  // rows pass through the layer groups [0, dropped_end_group).
  Interval dropped;
  uint32_t dropped_cells = 0;
  uint8_t dropped_first_group = 0;
  uint8_t dropped_end_group = 0;
  // The partly filled block is on the device in every group, or there is no such block.
  bool tail_resident = true;
  // Bytes of that block are moving to another tier: no row may write to it.
  bool tail_busy = false;
  // Of the blocks in peer_blocks, or in cached_peer_blocks, some are a peer's own: they are attended where
  // they lie, also by a sequence that does not stream.
  bool attended = false;
  // Transfers in flight for its copies; the count saturates.
  uint16_t transfers = 0;
  // A waiting sequence may adopt tokens [0, cached_tokens) from existing blocks: whole blocks, on any tier
  // and in any form that yields K and V, and never the last known token, whose logits are needed.
  // `cached_resident_cells` of their cells are KV on the device. The sequence would hold one copy of each
  // cell. `cached_idle` counts, by form and tier, those of these copies that belong to blocks
  // without references: adoption takes them from the tier's idle cells. `cached_shared_cells` of the resident
  // cells are in windowed layer groups and in use: others may keep them when they are dead for this sequence,
  // so that they make no room for its own.
  uint32_t cached_tokens = 0;
  uint32_t cached_resident_cells = 0;
  uint32_t cached_shared_cells = 0;
  // Of the cached blocks, those of whole leaves of attention that lie at peers in every layer group: a
  // sequence that streams adopts them where they are, and the peers attend to them. 0 where peers compute no
  // prompts and no prefix is attended at them.
  uint32_t cached_peer_blocks = 0;
  std::array<std::array<uint32_t, kTiers>, kForms> cached_idle{};
  // In the windowed layer groups its first blocks are dead (CacheGeometry::dead_blocks): it holds none of
  // these cells and needs none. They are not dropped, and count like blocks on the device in `device_groups`
  // and `resident_blocks`.
  uint32_t dead_blocks = 0;
  // Cells that promises still hold for it, by tier.
  std::array<uint32_t, kTiers> promised_cells{};
  // Of the blocks that the layer group with the fewest blocks on the device lacks there, so many need no
  // staging: they are whole leaves of attention that lie at peers, and the peers attend to them. 0 for a
  // sequence with dropped cells.
  uint32_t peer_blocks = 0;

  uint32_t held(Form form, Tier tier) const { return cells[index_of(form)][index_of(tier)]; }
  uint32_t own(Form form, Tier tier) const { return own_cells[index_of(form)][index_of(tier)]; }
  uint32_t kv_cells(Tier tier) const { return held(Form::kKv, tier); }
  // Of the resident cells that it may adopt, those in use that its promise need not cover.
  uint32_t cached_in_use() const {
    const uint32_t apart = cached_idle[index_of(Form::kKv)][index_of(Tier::kDevice)] + cached_shared_cells;
    return cached_resident_cells - std::min(cached_resident_cells, apart);
  }
  uint32_t own_kv_cells(Tier tier) const { return own(Form::kKv, tier); }
  // It holds X on a tier other than the device. To be projected, that X passes through the stage ring.
  bool x_elsewhere() const { return held(Form::kX, Tier::kHost) + held(Form::kX, Tier::kDisk) > 0; }
  uint32_t dead_cells(const CacheGeometry& geometry) const { return dead_blocks * geometry.windowed.count(); }
  // The cells of its blocks that are not dead.
  uint32_t live_cells(const CacheGeometry& geometry) const {
    return blocks * geometry.groups() - dead_cells(geometry);
  }
  uint32_t promised(Tier tier) const { return promised_cells[static_cast<size_t>(tier)]; }
  // Every block is on the device in every layer group.
  bool resident() const { return resident_blocks == blocks; }
};

// One sequence. All lengths are in tokens.
struct SeqView : SequenceCells {
  SeqId id{};
  int32_t priority = 0;  // lower runs first
  float weight = 1;      // what it is worth beside others; above 0
  Nanos arrival = 0;
  Nanos first_token_time = 0;  // 0: none yet
  Nanos last_token_time = 0;   // 0: none yet
  Slo slo;
  LengthPrediction predicted;

  uint32_t prompt_tokens = 0;
  // Prompt and generated tokens, including those that steps in flight are about to sample.
  uint32_t known_tokens = 0;
  // The maximum length of the sequence (prompt and output).
  uint32_t max_total_tokens = 0;
  // It was deferred, and the transfers that it waits for have not ended: running it now would wait again.
  bool stalled = false;
  // How many times in a row its rows were deferred; the count saturates.
  uint8_t deferrals = 0;
  // Steps in flight that hold rows of this sequence.
  uint8_t in_flight = 0;
  uint16_t preemptions = 0;  // the count saturates
  uint16_t late_gaps = 0;    // gaps between its tokens that were longer than slo.tbt_ms; the count saturates

  uint32_t tokens_to_compute() const { return known_tokens - ready_tokens; }
  // Its next token is decoded, not prefilled: every token except the newest is ready.
  bool decoding() const { return ready_tokens + 1 == known_tokens && known_tokens > prompt_tokens; }
};
static_assert(sizeof(SeqView) <= 256);

// Settings that plans must respect.
struct PlanLimits {
  uint32_t max_num_seqs = 256;                // running at once
  uint32_t max_num_batched_tokens = 512;      // rows of a step
  uint32_t long_prefill_token_threshold = 0;  // largest prefill chunk of one sequence; 0: no bound of its own
  // Prefill rows that may share a step with decodes without delaying the decodes beyond the stall budget, as
  // measured so far; 0: no bound. The engine adjusts it.
  uint32_t max_prefill_beside_decodes = 0;
};

// Measured performance of the link between the device and the host.
struct LinkView {
  double bytes_per_s = 0;  // 0: nothing has been moved yet
  double latency_s = 0;
  uint64_t queued_bytes = 0;
};

// Memory of other instances (peers), and their demands on this instance's memory. All cells are KV cells.
// Borrowed cells are part of the host tier.
struct PeersView {
  uint32_t most_borrowed = 0;  // maximum of borrowed cells; 0: this instance borrows nothing
  uint32_t out_of_reach = 0;   // of those: requested, but no peer lent them
  uint32_t borrowed = 0;       // usable now, without recalled ones

  uint32_t asked = 0;               // requested by plans, not answered yet
  uint32_t recalled = 0;            // to be returned: not allocatable, and each is returned once unused
  uint32_t lent = 0;                // own cells lent to peers
  bool peers_refuse = false;        // for so long that waiting is useless
  uint32_t awaited = 0;             // own cells that a request of a peer waits for
  Nanos awaited_since = INT64_MAX;  // arrival of that request: no later one is admitted to these cells
  Nanos recalled_by = 0;            // when the first recalled cell is taken back by force; 0: never
  // What a sequence keeps in recalled cells: `blocks` blocks from `block` on, in one layer group.
  struct Recalled {
    SeqId seq{};
    uint32_t block = 0;
    uint32_t blocks = 0;
    uint32_t group = 0;
    friend bool operator==(const Recalled&, const Recalled&) = default;
  };
  std::vector<Recalled> in_recalled;

  // Cells that a request with this arrival time must leave to an older request of a peer.
  uint32_t left_to_older(Nanos arrival) const { return arrival > awaited_since ? awaited : 0; }
};

struct View {
  Nanos now = 0;
  StepId next_step{};
  CacheGeometry geometry;
  PlanLimits limits;
  FrameBudget device;
  FrameBudget host;
  FrameBudget disk;
  // Capacity of the stage ring, in blocks of one layer; 0: there is no ring.
  uint32_t stage_blocks = 0;
  PeersView peers;
  // Rows of a step for whose activations there is memory; 0: the memory grows with the step. Rows that
  // recompute dropped cells count here like all others, but not against max_num_batched_tokens.
  uint32_t scratch_tokens = 0;
  // Transfers that have not ended. A plan may be empty in order to wait for one.
  uint32_t transfers_in_flight = 0;
  LinkView link;
  // The shared reserve of each tier: promised cells without an owner (FrameBudget::promised counts them).
  // Only a promise of Kind::kFromReserve takes them.
  std::array<uint32_t, kTiers> reserved_cells{};
  std::vector<Claim> claims;
  // Estimates.
  CostModel costs;
  std::vector<LengthClass> length_classes;
  // Steps submitted and not yet waited for. While it is not 0, frames that a plan gives up are not
  // available to that same plan.
  uint32_t steps_in_flight = 0;

  const FrameBudget& budget(Tier tier) const {
    return tier == Tier::kDevice ? device : (tier == Tier::kHost ? host : disk);
  }
  // Total KV cells of a tier.
  uint32_t total_cells(Tier tier) const { return budget(tier).total_cells(); }
  // The tier for cells that do not fit on the device, if a policy does not choose one.
  Tier slower_tier() const {
    return total_cells(Tier::kHost) > 0 || peers.most_borrowed > 0 ? Tier::kHost : Tier::kDisk;
  }
  // The total capacity for one sequence that runs alone. It includes everything that peers may lend; before
  // the sequence is admitted and while no peer lends, only the cells borrowed now.
  CellCapacity capacity(bool admitted = true) const {
    const uint32_t reach = peers.most_borrowed - std::min(peers.most_borrowed, peers.out_of_reach);
    const uint32_t borrowable =
        admitted ? reach : (peers.peers_refuse ? peers.borrowed : peers.most_borrowed);
    const uint32_t slower = total_cells(slower_tier());
    const uint32_t own = slower - std::min(slower, peers.borrowed + peers.recalled);
    return {geometry.groups(),
            total_cells(Tier::kDevice),
            own,
            stage_blocks,
            borrowable,
            geometry.blocks_per_leaf(),
            peers.most_borrowed > 0,
            geometry.windowed.count(),
            geometry.window_blocks()};
  }

  std::vector<SeqView> running;  // in the order of admission
  std::vector<SeqView> waiting;  // by arrival; a preempted sequence returns to its old place
};

}  // namespace kvasir
