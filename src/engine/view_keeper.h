// Keeps the View up to date for the policy, by deltas: a waiting sequence's entry is written again only when
// something about it has changed.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "cache/sequences/kv_cache.h"
#include "contract/link.h"
#include "contract/view.h"
#include "engine/belief_keeper.h"
#include "engine/live_requests.h"
#include "engine/options.h"

namespace kvasir {

// Used by the engine's thread. Of the View it writes all but the two lists' order (LiveRequests), the beliefs
// (BeliefKeeper) and what concerns peers (PeerLending).
class ViewKeeper {
 public:
  // All that is given outlives it; link: null where there is no tier but the device's.
  ViewKeeper(const EngineOptions& options, View& view, LiveRequests& requests, KvCache& cache,
             BeliefKeeper& beliefs, const Link* link);

  // What the loop knows of the moment at which it plans.
  struct Moment {
    Nanos now = 0;
    StepId next_step{};
    uint32_t steps_in_flight = 0;
    uint32_t max_prefill_beside_decodes = 0;  // PlanLimits
  };
  // Before a plan: settles claims, and brings all of the View up to date.
  void update(const Moment& moment);

  // Writes a request's entry again. REQUIRES: the request waits or runs.
  void refresh(LiveRequest& live);
  // Does so if the request is there and waits: the entries of those that run are written by update().
  void refresh_waiting(SeqId id);

 private:
  void refresh(const LiveRequest& live, SeqView& view) const;

  View& view_;
  LiveRequests& requests_;
  KvCache& cache_;
  BeliefKeeper& beliefs_;
  const Link* const link_;
  const bool adopts_at_peers_;  // SeqView::cached_peer_blocks
};

}  // namespace kvasir
