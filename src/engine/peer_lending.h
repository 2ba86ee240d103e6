// The engine's side of memory that instances lend each other: its requests to peers, its reactions to cells
// that are granted, recalled or lost, and how long it waits.
//
//   turn()  passes the requests of the last plan to Lending, and updates cache and view
//   ...     the policy plans
//   ask()   stores the requests of that plan for the next turn
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "cache/sequences/kv_cache.h"
#include "contract/lending.h"
#include "contract/step_plan.h"
#include "contract/view.h"
#include "engine/live_requests.h"
#include "engine/metrics.h"
#include "engine/options.h"
#include "engine/peer_prefixes.h"
#include "engine/peer_prompts.h"

namespace kvasir {

// Used by the engine's thread. Only this class writes View::peers (except most_borrowed) and
// EngineMetrics::peers, and changes the borrowed and lent cells of the cache.
class PeerLending {
 public:
  // The arguments outlive it.
  // prefixes: null: none are copied. prompts: null: peers compute none.
  PeerLending(const EngineOptions& options, Lending& lending, const Clock& clock, KvCache& cache, View& view,
              LiveRequests& requests, EngineMetrics::Peers& metrics, PeerPrefixes* prefixes = nullptr,
              PeerPrompts* prompts = nullptr);

  // Before each plan. Sequences may lose copies in lost memory: see KvCache::take_cut_back().
  void turn();
  // A plan was applied. steps_in_flight: a step that was submitted before has not ended.
  void ask(const StepPlan& plan, bool steps_in_flight);
  // A step runs: no request waits only for peers.
  void step_submitted() { stuck_since_ = 0; }

  // The plan stands still (stands_still()). True: the first waiting request keeps waiting for peers' memory.
  // False: it has no reason to wait, or has waited for too long, and must fail.
  bool keeps_waiting();
  // A later turn may bring progress that no plan can make now: the loop may sleep until then.
  bool expects_something() const;

 private:
  LendingRequest next_request();
  void take_in(const LendingEvents& events);
  void note_answers(const LendingEvents& events, Nanos now);
  void show(const LendingEvents& events, Nanos now);
  void count(const LendingEvents& events);
  void give_back_empty(uint32_t cells);
  // The peers that are there could lend what it may need.
  bool within_reach(const SeqView& seq) const;
  MemoryClaim claim_own(const StepPlan& plan, bool moves) const;

  const Nanos patience_;  // EngineOptions::borrow_patience
  const Nanos timeout_;   // EngineOptions::borrow_timeout: of the first request, within the peers' reach
  Lending& lending_;
  const Clock& clock_;
  KvCache& cache_;
  const View& view_;
  PeersView& peers_;  // view_.peers
  LiveRequests& requests_;
  EngineMetrics::Peers& metrics_;
  PeerPrefixes* const prefixes_;
  PeerPrompts* const prompts_;

  // For the next turn; see LendingRequest.
  uint32_t borrow_ = 0;
  uint32_t recall_ = 0;
  MemoryClaim own_;
  MemoryClaim missing_;

  uint32_t lendable_ = UINT32_MAX;  // LendingEvents::lendable
  Nanos refused_since_ = 0;         // peers have lent nothing since then; 0: they lend, or were not asked
  Nanos ask_again_at_ = 0;          // until then the first request asks for nothing; 0: it may ask
  SeqId stuck_{};                   // the first request, which waits only for peers' memory
  Nanos stuck_since_ = 0;           // 0: no request does
  Nanos beyond_reach_since_ = 0;    // all peers together lend too little for it; 0: they lend enough
};

}  // namespace kvasir
