// The settings of an Engine.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "cache/sequences/kv_cache.h"
#include "contract/cache_events.h"
#include "contract/view.h"

namespace kvasir {

class MapSink;

// Whether peers compute the rows of a prompt whose K and V go to them, and this instance those of peers'
// prompts (engine/peer_prompts.h). Needs prefix caching.
enum class PeerPromptUse : uint8_t {
  kNever,
  kByCost,  // where that is believed to be faster
  kAlways,
};

// Whether blocks of prompts are copied from peers that have them, or attended there
// (engine/peer_prefixes.h). Needs CacheOptions::prefix_cells, and attended_cells for those that are attended.
enum class PeerPrefixUse : uint8_t {
  kNever,
  kByCost,  // the one that is believed to be faster, if it is faster than computing them
  kFetch,   // whatever a peer has is copied
  kAttend,  // whatever can be is attended, and the rest copied
};

struct EngineOptions {
  CacheOptions cache;
  PlanLimits limits;
  uint32_t max_model_len = 0;  // prompt and output of one request, in tokens
  // The longest time that running decodes wait within one step, for transfers or because of a long prefill;
  // 0: no bound.
  Nanos max_decode_stall = 0;
  uint32_t max_num_queued_reqs = 1024;  // accepted requests that have never run
  uint64_t max_num_queued_tokens = 0;   // their prompt tokens; 0: no bound
  // Refuses a request with a bound on TTFT at once if the queue, at its pace so far, would take more than a
  // quarter of that bound. The rest is for its own prefill and for changes of the pace. A late answer would
  // take memory from one that could be in time.
  bool refuse_late = false;
  // How far a tenant may be ahead of another in service, in tokens of weight 1, before it must wait for the
  // other (FairGate); 0 is as fair as can be, more leaves the policy more choice.
  double fair_slack_tokens = 1024;
  // The rows of a step for which the executor has activation memory; 0: that memory grows with the step, as
  // on a CPU (a policy may run a long prompt in one step).
  uint32_t scratch_tokens = 0;
  // How long peers must refuse to lend before the first waiting request runs without borrowed memory, or
  // fails.
  Nanos borrow_patience = 3 * kNanosPerSecond;
  // How long the first waiting request may wait only for peers' memory before it fails: borrow_patience where
  // all peers together lend too little for it. Meanwhile it returns grants that are too small, so that other
  // instances' requests can use them, and asks again.
  Nanos borrow_timeout = 120 * kNanosPerSecond;

  PeerPrefixUse peer_prefixes = PeerPrefixUse::kNever;
  PeerPromptUse peer_prompts = PeerPromptUse::kNever;
  // Token ids of the model are below it. A peer's prompt with any other id is not computed.
  int32_t vocab_size = 0;

  // The engine tells it after every turn of the loop which blocks requests can reuse. Outlives the engine.
  // Needs CacheOptions::tells_events. Null: no events are made.
  CacheEventSink* cache_events = nullptr;

  // Gets frames of the cache map when it wants some. Outlives the engine. Null: none are made.
  MapSink* map = nullptr;

  // Checks every plan against its view. A plan that breaks a rule is our bug and ends the process.
  bool check_plans = true;
  // Recounts the whole cache after every turn: slow, for tests.
  bool check_integrity = false;
};

}  // namespace kvasir
