// Random requests through an engine over the shadow executor, with every output compared with what the
// tokens alone say.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "contract/cost_model.h"
#include "engine/cache_map.h"
#include "engine/counting_policy.h"
#include "engine/mutating_policy.h"
#include "engine/plan_log.h"

namespace kvasir::test {

struct TortureConfig {
  std::string policy = "sarathi";
  int depth = 1;
  uint32_t groups = 1;
  uint32_t block_tokens = 16;
  uint32_t total_blocks = 26;  // at least what one request of 400 tokens needs
  uint32_t host_blocks = 0;    // of the host tier; 0: none
  uint32_t disk_blocks = 0;    // of the disk tier; 0: none
  uint32_t x_bytes = 0;        // of X, per token and layer; 0: no such copies
  uint32_t scratch_tokens = 0;
  uint32_t borrowed_blocks = 0;  // that may be borrowed from peers; 0: there are none
  double recalls = 0;            // shares of the turns in which peers recall, lose and borrow something
  double losses = 0;
  double own_lent = 0;
  double refusals = 0;
  // Peers have blocks that were computed before: shares of the turns in which they say so, and in which what
  // is copied is lost.
  double prefixes = 0;
  double prefixes_lost = 0;
  uint32_t attended_blocks = 0;  // of prefixes that peers keep
  double stays = 0;              // share of those it shows that it keeps for peers, until it wants them back
  // Peers compute rows of prompts, and have some computed: share of the turns.
  double prompts = 0;
  double lost_answers = 0;    // share of the answers of peers that do not come
  uint32_t longest = 400;     // a request, in tokens
  uint32_t stage_blocks = 0;  // of which the stage ring holds one layer
  uint32_t layers_per_group = 2;
  uint32_t layers = 0;           // 0: of whole groups
  uint32_t window = 0;           // of all layers but every third one, in tokens; 0: there is none
  double late_waits = 0;         // share of the waits for transfers that are in vain
  double failing_transfers = 0;  // share of the transfers that fail
  double moved = 0.5;            // share of the turns in which some transfers end
  Nanos max_decode_stall = 0;
  bool prefix_caching = true;
  bool check = true;  // every plan, and the whole map after every step
  uint32_t requests = 200;
  uint32_t at_once = 12;  // submitted and not finished
  uint32_t max_num_seqs = 8;
  uint32_t max_num_batched_tokens = 64;
  double cancels = 0.1;        // share of the requests that are cancelled at some time
  double failing_steps = 0.0;  // share of the steps that fail
  uint64_t seed = 1;
  uint32_t tenants = 4;    // whose the requests are, in a drawn order
  Slo slo;                 // of every request
  double forced_ends = 0;  // share of the requests whose output ends where the request says
  // Believed of costs: a policy may be told anything. Steps take a microsecond a row.
  CostModel costs;
  bool learns_costs = false;         // from real steps, beginning with those
  std::string predictor;             // of lengths; "": none
  uint64_t most_steps = UINT64_MAX;  // requests that have not ended then count as wrong
  PlanLog* log = nullptr;
  MapSink* map = nullptr;
  std::function<void(const View&)> seen;  // called with each view before it is planned
  // Edited plans, and how many of them are tried before all is as without; null: none are.
  MutationCounts* mutations = nullptr;
  uint64_t most_mutations = 0;
};

struct TortureOutcome {
  uint64_t steps = 0;
  uint64_t preemptions = 0;
  uint64_t hit_tokens = 0;
  uint64_t wrong = 0;       // requests whose output is not what it must be
  std::string first_wrong;  // one of them, for people
  uint64_t complete = 0;    // requests that ended by themselves
  uint64_t aborted = 0;
  uint64_t failed = 0;
  uint64_t used_blocks_left = 0;
  uint64_t host_bytes_left = 0;
  uint64_t disk_bytes_left = 0;
  uint64_t transfers_left = 0;
  uint64_t swapped = 0;  // preemptions that kept their cells on the host
  PlanCounts counts;
  uint64_t staged_steps = 0;   // steps that read through the ring
  uint64_t partial_steps = 0;  // steps with a sequence of which some layer groups, not all, are on the device
  uint64_t deferred = 0;       // rows that left a step
  uint64_t remote_leaves = 0;  // attended at peers, times layers
  uint64_t granted = 0, recalled = 0, lost = 0, lent = 0;  // cells of peers, and to them
  uint64_t prefix_hits = 0, prefix_late = 0, prefix_failed = 0, prefix_shown = 0,
           prefix_attended = 0;                                                // tokens
  uint64_t computed_at_peers = 0, computed_for_peers = 0, kept_for_peers = 0;  // cells
  uint64_t transfers = 0;
  uint64_t standstills = 0;
  std::string integrity;  // "" or what the map says at the end
  CostModel believed;     // of costs at the end, where they are learnt
  double seconds = 0;
};

TortureOutcome torture(const TortureConfig& config);

// How many requests a run of so many is to have: with KVASIR_LONG=1 thirty times as many, otherwise under a
// sanitizer, where each takes ten times as long, half.
uint32_t scaled(uint32_t requests);

}  // namespace kvasir::test
