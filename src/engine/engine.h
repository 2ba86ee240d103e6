// The engine: requests in, tokens out. The loop itself is StepLoop (engine/step_loop.h).
//
// The engine's thread is the caller's (step()) or the engine's own (start()). Other threads reach it
// through the Inbox.
//
// Memory. A request for which there is none when it arrives fails alone, and so does a step that the executor
// has no memory for, with the requests in it. Where memory is missing in the middle of a change of the books,
// the engine starts anew: all requests that were accepted fail with an error that says so, and the loop, its
// cache and its beliefs about requests are made again, empty. In no case does the process end, or a request
// get a wrong token.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "contract/executor.h"
#include "contract/lending.h"
#include "contract/policy.h"
#include "engine/belief_keeper.h"
#include "engine/inbox.h"
#include "engine/metrics.h"
#include "engine/options.h"
#include "engine/plan_log.h"
#include "engine/request.h"
#include "engine/step_loop.h"

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
  // With places it takes one of them: then it is refused only if it can never fit, or the engine has stopped.
  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<OutputSink> sink,
                           QueuePlaces* places = nullptr) {
    return inbox_.submit(std::move(request), std::move(sink), places);
  }
  // Keeps places in the queue for these requests of one tenant. Errors as of submit(), also where the queue
  // can never have so many: kInvalidArgument. REQUIRES: the engine outlives the places
  Result<std::unique_ptr<QueuePlaces>> reserve(std::span<const GenerationRequest> requests) {
    return inbox_.reserve(requests);
  }

  // Ends a request soon with `reason`: kAbort, or kStop if the caller has found a stop string in the text.
  // Unknown or finished requests are ignored.
  void cancel(RequestId id, FinishReason reason = FinishReason::kAbort) { inbox_.cancel(id, reason); }

  // Accepts no new requests from now on; accepted requests continue.
  void drain() { inbox_.drain(); }
  // Waits until every accepted request has ended, or for `timeout`. True if all have ended.
  // REQUIRES: start() was called, or the timeout is 0.
  bool wait_idle(Nanos timeout) { return inbox_.wait_idle(timeout); }

  // How long the loop has shown no sign of life: since its turn began, or the executor last came on in its
  // step; or, if it rests, since something came that it should hear. 0: it rests, and there is nothing. Takes
  // no lock.
  Nanos silent_for() const;

  const EngineOptions& options() const { return options_; }
  const EngineMetrics& metrics() const { return metrics_; }
  // Brings metrics().link up to date.
  void observe_link();

  // --- The thread that owns the engine.

  // Runs the loop on a thread of the engine's until stop().
  void start();
  // Ends that thread, and the remaining requests with kAbort. A second call does nothing.
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
  Status check_integrity() const { return loop_->check_integrity(); }

 private:
  void run();
  void start_anew();

  const EngineOptions options_;
  const std::unique_ptr<Policy> policy_;
  const std::string policy_state_;  // of the policy when it was new
  Executor& executor_;
  const Clock& clock_;
  Link* const link_;
  Lending* const lending_;
  const Beliefs beliefs_;

  EngineMetrics metrics_;
  std::mutex link_metrics_mutex_;  // guards writes of metrics_.link, so that its counters never decrease
  Inbox inbox_;
  Inbox::Messages in_hand_;  // used by the engine's thread
  std::atomic<bool> in_turn_{false};
  std::atomic<Nanos> last_sign_{0};  // when a turn began or ended

  const StepLoop::Parts parts_;
  std::optional<StepLoop> loop_;  // used by the engine's thread

  // Used by the thread that owns the engine.
  std::thread thread_;
  bool stopped_ = false;
};

}  // namespace kvasir
