// What a policy sees. Kept up to date by deltas; never rebuilt from the cells.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "contract/cost_model.h"
#include "contract/frame_budget.h"
#include "contract/geometry.h"
#include "contract/ids.h"
#include "contract/interval.h"
#include "contract/layer_set.h"
#include "contract/length_predictor.h"
#include "contract/residence.h"
#include "contract/slo.h"
#include "contract/step_plan.h"

namespace kvasir {

// One sequence. All lengths are in tokens.
struct SeqView {
  SeqId id{};
  int32_t priority = 0;  // lower runs first
  Nanos arrival = 0;
  Nanos first_token_time = 0;  // 0: none yet
  Nanos last_token_time = 0;   // 0: none yet
  Slo slo;
  LengthPrediction predicted;

  uint32_t prompt_tokens = 0;
  // Prompt and generated tokens, with those that steps in flight are about to sample.
  uint32_t known_tokens = 0;
  // The sequence ends at this length at the latest (prompt and output).
  uint32_t max_total_tokens = 0;
  // [0, ready_tokens) have been computed, or will be when the steps in flight end: of each cell there is K
  // and V or X on some tier, unless a plan has dropped it.
  uint32_t ready_tokens = 0;
  // Blocks that its table names.
  uint32_t blocks = 0;
  // Cells (a block of one layer group) of which it holds a copy, by form and tier: ready, or coming. And
  // those of them in which nobody else has an interest and that nothing uses: they come free if it gives them
  // up.
  std::array<std::array<uint32_t, kTiers>, kForms> cells{};
  std::array<std::array<uint32_t, kTiers>, kForms> own_cells{};
  // Of the KV on the device, cells given up as soon as another copy is ready.
  uint32_t leaving_cells = 0;
  // The layer groups of which every block is on the device, and the least number of blocks that any has
  // there: of the group that has fewest, so many are to be staged when its rows run.
  LayerSet device_groups;
  uint32_t resident_blocks = 0;
  // Where something is borrowed: the first block of which K and V of some layer group are on the device; its
  // block count if there is none.
  uint32_t first_device_block = 0;
  // The smallest rectangle, tokens x layer groups [first, end), that holds the cells dropped: of which there
  // is neither K and V nor X. `bare_cells` of its cells are. To compute it again rows begin with H at the
  // group `restart_group`, or, if that is 0, with token ids.
  Interval dropped;
  uint32_t bare_cells = 0;
  uint8_t dropped_first_group = 0;
  uint8_t dropped_end_group = 0;
  uint8_t restart_group = 0;
  // The block that is not full yet is on the device in every group, or there is none.
  bool tail_resident = true;
  // Bytes of that block are on their way to another tier: no row may write to it.
  bool tail_busy = false;
  // It was deferred, and transfers that it waited for have not ended: running it would be waiting again.
  bool stalled = false;
  // How often in a row its rows were deferred; no more are counted.
  uint8_t deferrals = 0;
  // Steps in flight that hold rows of this sequence.
  uint8_t in_flight = 0;
  // Transfers in flight for its copies; no more are counted.
  uint16_t transfers = 0;
  uint16_t preemptions = 0;  // likewise
  // A waiting sequence may adopt [0, cached_tokens) from blocks that exist already: whole blocks, on any tier
  // and in any form that K and V can be had from, and never the last known token, whose logits are needed.
  // `cached_resident_cells` of their cells are KV on the device. Of the copies that it would take an interest
  // in, one for each cell, `cached_idle` are of blocks that nobody references, by form and tier: adopting
  // them takes them from what is idle there.
  uint32_t cached_tokens = 0;
  uint32_t cached_resident_cells = 0;
  std::array<std::array<uint32_t, kTiers>, 2> cached_idle{};  // [KV, X]
  // Cells that promises still hold for it, by tier.
  std::array<uint32_t, kTiers> promised_cells{};
  // Of the blocks that are not on the device in the layer group that has fewest there, those that need no
  // staging: they are whole leaves of attention and lie at peers, where they are attended. None of a sequence
  // with cells dropped.
  uint32_t peer_blocks = 0;

  uint32_t held(Form form, Tier tier) const { return cells[index_of(form)][index_of(tier)]; }
  uint32_t own(Form form, Tier tier) const { return own_cells[index_of(form)][index_of(tier)]; }
  uint32_t kv_cells(Tier tier) const { return held(Form::kKv, tier); }
  uint32_t own_kv_cells(Tier tier) const { return own(Form::kKv, tier); }
  // It holds X on another tier than the device: to be projected it passes through the ring.
  bool x_elsewhere() const { return held(Form::kX, Tier::kHost) + held(Form::kX, Tier::kDisk) > 0; }
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

// Memory of other instances, and what they want of this one's. Cells are of KV; what is borrowed is part of
// the host tier.
struct PeersView {
  uint32_t most_borrowed = 0;  // cells that may be borrowed in all; 0: this instance borrows nothing
  uint32_t out_of_reach = 0;   // of those: nobody lent them when it came to it
  uint32_t borrowed = 0;       // there now, without those that are to go back

  uint32_t asked = 0;               // wanted by plans so far; the answer is still to come
  uint32_t recalled = 0;            // to go back: nobody can have them, and each is gone when nobody needs it
  uint32_t lent = 0;                // of this instance's own, to others
  bool nobody_lends = false;        // whoever was asked has refused for so long that waiting is of no use
  uint32_t awaited = 0;             // of this instance's own: what a request of a peer lacks
  Nanos awaited_since = INT64_MAX;  // when that came: no later one is admitted in what it awaits
  Nanos recalled_by = 0;            // when the first of them is taken back by force; 0: none is
  // What lies in those, of sequences: so many blocks from `block` on, in one layer group.
  struct Recalled {
    SeqId seq{};
    uint32_t block = 0;
    uint32_t blocks = 0;
    uint32_t group = 0;
    friend bool operator==(const Recalled&, const Recalled&) = default;
  };
  std::vector<Recalled> in_recalled;

  // Cells that a request which came then leaves to an older one of a peer.
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
  // Blocks of which the stage ring holds one layer; 0: there is no ring.
  uint32_t stage_blocks = 0;
  PeersView peers;
  // Rows of a step for whose activations there is memory; 0: it grows with the step. Rows that compute
  // dropped cells again count as all others do, but not against max_num_batched_tokens.
  uint32_t scratch_tokens = 0;
  // Transfers that have not ended. A plan may do nothing and wait for one.
  uint32_t transfers_in_flight = 0;
  LinkView link;
  // Cells that promises keep on a tier for nobody in particular (FrameBudget::promised counts them): only who
  // asks for the reserve gets them.
  std::array<uint32_t, kTiers> reserved_cells{};
  std::vector<Claim> claims;
  // Beliefs.
  CostModel costs;
  std::vector<LengthClass> length_classes;
  // Steps submitted and not yet waited for. While it is not 0, frames that a plan gives up are not
  // available to that same plan.
  uint32_t steps_in_flight = 0;

  const FrameBudget& budget(Tier tier) const {
    return tier == Tier::kDevice ? device : (tier == Tier::kHost ? host : disk);
  }
  // Cells of KV that a tier has in all.
  uint32_t total_cells(Tier tier) const { return budget(tier).total_cells(); }
  // Where what has no room on the device goes if a policy does not say.
  Tier slower_tier() const {
    return total_cells(Tier::kHost) > 0 || peers.most_borrowed > 0 ? Tier::kHost : Tier::kDisk;
  }
  // What there is in all, for one sequence that is alone: once all has been borrowed that peers may lend, or,
  // before it is admitted and while nobody lends, what is there.
  CellCapacity capacity(bool admitted = true) const {
    const uint32_t reach = peers.most_borrowed - std::min(peers.most_borrowed, peers.out_of_reach);
    const uint32_t borrowable =
        admitted ? reach : (peers.nobody_lends ? peers.borrowed : peers.most_borrowed);
    const uint32_t slower = total_cells(slower_tier());
    const uint32_t own = slower - std::min(slower, peers.borrowed + peers.recalled);
    return {geometry.groups(), total_cells(Tier::kDevice), own, stage_blocks,
            borrowable,        geometry.blocks_per_leaf()};
  }

  std::vector<SeqView> running;  // in the order of admission
  std::vector<SeqView> waiting;  // by arrival; a preempted sequence takes its old place again
};

}  // namespace kvasir
