// Counts for EngineMetrics what happens to requests and steps in the loop.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "cache/sequences/kv_cache.h"
#include "contract/step.h"
#include "contract/step_plan.h"
#include "contract/view.h"
#include "engine/live_requests.h"
#include "engine/metrics.h"
#include "engine/request.h"

namespace kvasir {

// Used by the engine's thread. Each function is called when its event happens, and reads the request's state
// before the event, unless it says otherwise. Requests for peers count in none of the figures of requests.
class MetricsRecorder {
 public:
  // The arguments outlive it.
  MetricsRecorder(EngineMetrics& metrics, const KvCache& cache, const View& view,
                  const LiveRequests& requests);

  // --- Requests.
  void arrived(const LiveRequest& live);
  // A request fails because there is no memory to take it in.
  void turned_away() { ++metrics_.finished[static_cast<size_t>(FinishReason::kError)]; }
  void preempted(SeqId id, const StepPlan& plan);
  // A request adopts blocks; the plan's copies have not been made yet.
  void adopted(const LiveRequest& live, const Adoption& adoption);
  // A waiting request runs; and, if it never ran before, it began, at `live.first_run`.
  void admitted(const LiveRequest& live);
  void began(const LiveRequest& live);
  // A token was sampled; `live.generated` counts it already.
  void sampled(const LiveRequest& live, Nanos now);
  // Its rows left a step because a transfer or a peer was late.
  void deferred() { ++metrics_.deferred_rows; }
  void ended(const LiveRequest& live, FinishReason reason, Nanos now);

  // --- Steps.
  void planned(const StepPlan& plan);
  // rows_again: those of the step that recompute dropped cells.
  void submitted(const Step& step, uint32_t rows_again);

  // The current numbers of requests, blocks and bytes.
  void update_gauges();

 private:
  void count_hits(const Adoption& adoption);
  void count_partial_histories(const StepPlan& plan);
  void count_attainment(const LiveRequest& live, FinishReason reason, Nanos now);

  EngineMetrics& metrics_;
  const KvCache& cache_;
  const View& view_;
  const LiveRequests& requests_;
};

}  // namespace kvasir
