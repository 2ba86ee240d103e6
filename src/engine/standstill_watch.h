// Fails a request if the policy would make the engine stand still.
#pragma once

#include <cstdint>

#include "contract/step_plan.h"
#include "contract/view.h"
#include "engine/live_requests.h"
#include "engine/metrics.h"

namespace kvasir {

// This many preemptions of one request in a row are a standstill if no request makes progress between them. A
// policy preempts one request for another, which then makes progress. With two steps in flight, where freed
// memory becomes available a step later, policies were seen to need more than eight preemptions.
constexpr uint32_t kPreemptionsInVain = 32;

// Counts the progress of all requests together: how often one of them had more tokens ready than ever before,
// or one more token. Recomputing lost tokens is no progress. Used by the engine's thread; counts
// EngineMetrics::standstills.
class StandstillWatch {
 public:
  // The arguments outlive it.
  StandstillWatch(const View& view, LiveRequests& requests, EngineMetrics& metrics)
      : view_(view), requests_(requests), metrics_(metrics) {}

  // For a plan that does nothing though there is work and nothing is in flight: changes it so that the first
  // request fails. REQUIRES: there is a request
  void fail_head(StepPlan& plan);
  // If the plan preempts a request that was already preempted kPreemptionsInVain times in vain, changes it so
  // that this request fails.
  void break_cycle(StepPlan& plan);

  // A request was preempted.
  void preempted(LiveRequest& live);
  // A request has one more token, which it keeps even if it was preempted meanwhile.
  void generated() { ++progress_; }
  // A step with rows of the request has ended, and `ready_tokens` of its tokens are ready.
  void ran(LiveRequest& live, uint32_t ready_tokens);

 private:
  void fail(SeqId id, StepPlan& plan);

  const View& view_;
  LiveRequests& requests_;
  EngineMetrics& metrics_;
  uint64_t progress_ = 0;
};

}  // namespace kvasir
