// The step loop: drain events, plan, commit, submit, publish.
//
//   any thread ── Inbox ──> engine's thread: one turn after the other
//                             drain    arrivals, cancels, transfers, peers   RequestLifecycle, PeerLending
//                             show     who of several tenants may be next    FairGate
//                             plan     the view as it is now, the policy     ViewKeeper, BeliefKeeper,
//                                                                            StandstillWatch
//                             apply    cells, then states of requests        Committer, RequestLifecycle
//                             submit   to the executor
//                             publish  tokens to cache and sinks             RequestLifecycle
//
// The engine's thread is the caller's (step()) or the engine's own (start()). It alone touches the cache, the
// policy and the view; other threads reach it through the Inbox.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
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
#include "engine/metrics.h"
#include "engine/metrics_recorder.h"
#include "engine/options.h"
#include "engine/peer_lending.h"
#include "engine/plan_log.h"
#include "engine/request.h"
#include "engine/request_lifecycle.h"
#include "engine/stall_budget.h"
#include "engine/standstill_watch.h"
#include "engine/view_keeper.h"

namespace kvasir {

class Engine {
 public:
  // The longest request, in tokens, that fits in all tiers of an empty cache together.
  static uint32_t longest_fit(const CacheOptions& cache);

  // All arguments except the policy outlive the engine. Null: `log` if no plans are logged, `link` if the
  // device is the only tier, `lending` if there are no peers. REQUIRES: 0 < max_model_len <=
  // longest_fit(options.cache); the executor's depth is 1 or 2.
  Engine(const EngineOptions& options, std::unique_ptr<Policy> policy, Executor& executor, const Clock& clock,
         PlanLog* log = nullptr, Link* link = nullptr, const Beliefs& beliefs = {},
         Lending* lending = nullptr);
  // Stops.
  ~Engine();

  // --- Any thread.

  // Queues a request. Its sink gets events until the one with `finish`.
  // kInvalidArgument: it can never fit; the message names the largest length that does.
  // kExhausted: the queue is full. kOverShare: the tenant takes all the places that it may take of it.
  // kUnavailable: the engine is draining.
  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<OutputSink> sink) {
    return inbox_.submit(std::move(request), std::move(sink));
  }

  // Ends a request soon with `reason`: kAbort, or kStop if the caller has found a stop string in the text.
  // Unknown or finished requests are ignored.
  void cancel(RequestId id, FinishReason reason = FinishReason::kAbort) { inbox_.cancel(id, reason); }

  // Accepts no new requests from now on; accepted requests continue.
  void drain() { inbox_.drain(); }
  // Waits until every accepted request has ended, or for `timeout`. True if all have ended.
  // REQUIRES: start() was called, or the timeout is 0.
  bool wait_idle(Nanos timeout) { return inbox_.wait_idle(timeout); }

  const EngineOptions& options() const { return options_; }
  const EngineMetrics& metrics() const { return metrics_; }
  // Brings metrics().link up to date.
  void observe_link();

  // --- The thread that owns the engine.

  // Runs the loop on a thread of the engine's until stop().
  void start();
  // Ends that thread, and the remaining requests with kAbort.
  void stop();

  // Publishes the prefixes that a disk tier holds from an earlier run. Returns the number of their blocks.
  // REQUIRES: before start() and the first step()
  size_t restore_prefixes(std::span<const DiskEntry> cells);
  // Copies idle blocks to the disk tier for at most `patience`, and returns the prefixes that the tier holds.
  // REQUIRES: stop() was called
  std::vector<DiskEntry> save_prefixes(Nanos patience);

  // One turn of the loop, instead of start(). False: there is nothing to do. If every request waits for a
  // transfer, the turn does nothing and returns true.
  bool step();

  // For tests, between turns: no frame is lost, and every reference is counted.
  Status check_integrity() const { return cache_.check_integrity(); }

 private:
  void run();
  bool has_work() const { return !requests_.empty() || !in_flight_.empty(); }
  bool executor_full() const;
  bool waits_for_others() const;

  // The phases of a turn.
  void drain_inbox();
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

  const EngineOptions options_;
  const std::unique_ptr<Policy> policy_;
  Executor& executor_;
  const Clock& clock_;
  PlanLog* const log_;
  Link* const link_;
  Lending* const lending_;

  EngineMetrics metrics_;
  std::mutex link_metrics_mutex_;  // guards writes of metrics_.link, so that its counters never decrease
  Inbox inbox_;

  // Used by the engine's thread.
  KvCache cache_;
  Committer committer_;
  View view_;
  LiveRequests requests_;
  BeliefKeeper beliefs_;
  ViewKeeper view_keeper_;
  StandstillWatch watch_;
  MetricsRecorder recorder_;
  FairGate gate_;
  RequestLifecycle lifecycle_;
  std::optional<PeerLending> peers_;  // where there is a Lending
  StallBudget stall_;
  std::deque<SubmittedStep> in_flight_;
  uint64_t next_step_ = 1;
  bool idle_ = false;  // the last turn did nothing but wait for transfers or peers

  std::thread thread_;  // used by the thread that owns the engine
};

}  // namespace kvasir
