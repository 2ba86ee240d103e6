// The step loop: drain events, plan, commit, submit, publish.
//
//   any thread ── Inbox ──> engine's thread: one turn after the other
//                             drain    arrivals, cancels, transfers, peers   RequestLifecycle, PeerLending
//                             show     which tenants may be served next      FairGate
//                             plan     the view as it is now, the policy     ViewKeeper, BeliefKeeper,
//                                                                            StandstillWatch
//                             apply    cells, then states of requests        Committer, RequestLifecycle
//                             submit   to the executor
//                             publish  tokens to cache and sinks             RequestLifecycle
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cache/commit/committer.h"
#include "contract/executor.h"
#include "contract/lending.h"
#include "contract/policy.h"
#include "contract/view.h"
#include "engine/belief_keeper.h"
#include "engine/fair_gate.h"
#include "engine/inbox.h"
#include "engine/live_requests.h"
#include "engine/map_watch.h"
#include "engine/metrics.h"
#include "engine/metrics_recorder.h"
#include "engine/options.h"
#include "engine/peer_lending.h"
#include "engine/peer_prefixes.h"
#include "engine/peer_prompts.h"
#include "engine/plan_log.h"
#include "engine/request.h"
#include "engine/request_lifecycle.h"
#include "engine/stall_budget.h"
#include "engine/standstill_watch.h"
#include "engine/view_keeper.h"

namespace kvasir {

// Used by the engine's thread. It alone touches the cache, the policy and the view. A turn that throws
// std::bad_alloc may have left any of them half changed: then only abandon(), past() and the destructor may
// be called.
class StepLoop {
 public:
  // What outlives a loop.
  struct Parts {
    const EngineOptions& options;
    Policy& policy;
    Executor& executor;
    const Clock& clock;
    PlanLog* log;      // null: no plans are logged
    Link* link;        // null: the device is the only tier
    Lending* lending;  // null: there are no peers
    const Beliefs& beliefs;
    EngineMetrics& metrics;
    Inbox& inbox;
    Inbox::Messages& in_hand;  // taken from the inbox, and not taken in yet
  };
  // What loops before this one have begun: numbers that an executor and a link may see only once.
  struct Past {
    uint64_t steps = 0;
    uint64_t transfers = 0;
  };

  StepLoop(const Parts& parts, const Past& past);

  // One turn. REQUIRES: see Engine::step()
  void turn();
  bool has_work() const {
    return !requests_.empty() || !in_flight_.empty() || (prompts_ && prompts_->computes());
  }
  // The last turn did nothing but wait for transfers or peers.
  bool waits() const { return idle_; }
  // When a turn is due then, even if nothing happens; INT64_MAX: never.
  Nanos due() const {
    return std::min(prefixes_ ? prefixes_->next_deadline() : INT64_MAX,
                    prompts_ ? prompts_->next_deadline() : INT64_MAX);
  }

  // Waits for the steps in flight, and ends all requests with kAbort.
  void finish();
  // After a turn that has thrown: waits until no peer, no step and no transfer uses the cache's memory, and
  // ends all requests with an error.
  void abandon();
  Past past() const { return {next_step_ - 1, cache_.transfers_begun()}; }

  // See Engine.
  size_t restore_prefixes(std::span<const DiskEntry> cells);
  std::vector<DiskEntry> save_prefixes(Nanos patience);
  Status check_integrity() const { return cache_.check_integrity(); }

 private:
  bool executor_full() const;
  bool waits_for_others() const;

  // The phases of a turn.
  void drain_inbox();
  void take_in();
  StepPlan make_plan();
  StepPlan ask_policy();
  Step apply(const StepPlan& plan);
  // False: the step has no rows.
  bool submit_step(Step step);
  StepResult wait_for_oldest();
  void publish(StepResult result);
  void tell_cache_events();

  SubmittedStep complete(Step& step);
  void add_history(Step& step, StepSlice& slice, const LiveRequest& live) const;
  uint32_t hidden_from(const LiveRequest& live, const StepSlice& slice) const;
  void observe(const SubmittedStep& step, const StepResult& result);

  const EngineOptions& options_;
  Policy& policy_;
  Executor& executor_;
  const Clock& clock_;
  PlanLog* const log_;
  Link* const link_;
  Lending* const lending_;
  EngineMetrics& metrics_;
  Inbox& inbox_;
  Inbox::Messages& in_hand_;

  KvCache cache_;
  Committer committer_;
  View view_;
  LiveRequests requests_;
  BeliefKeeper beliefs_;
  ViewKeeper view_keeper_;
  StandstillWatch watch_;
  MetricsRecorder recorder_;
  MapWatch map_;
  FairGate gate_;
  RequestLifecycle lifecycle_;
  std::optional<PeerPrefixes> prefixes_;  // where prefixes are copied from peers
  std::optional<PeerPrompts> prompts_;    // where peers compute prompts
  std::optional<PeerLending> peers_;      // where there is a Lending
  StallBudget stall_;
  std::deque<SubmittedStep> in_flight_;
  int at_executor_ = 0;  // steps that it has and that have not ended
  uint64_t next_step_ = 1;
  bool idle_ = false;
  bool tells_all_;  // the sink of cache events is to hear everything
};

}  // namespace kvasir
