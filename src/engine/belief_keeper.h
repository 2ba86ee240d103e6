// Updates the cost model and the length predictor with the events of the loop, and puts their results into
// the view.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cache/sequences/kv_cache.h"
#include "contract/cost_estimator.h"
#include "contract/length_predictor.h"
#include "contract/link.h"
#include "contract/step.h"
#include "contract/view.h"
#include "engine/live_requests.h"
#include "engine/metrics.h"
#include "engine/request.h"

namespace kvasir {

// The models of costs and lengths; null: there is none. Both outlive the engine.
struct Beliefs {
  CostEstimator* costs = nullptr;
  LengthPredictor* lengths = nullptr;
};

// Adds the work of a slice's rows, as PlanBuilder::work() counts it: rows that pass through some of the
// layers count by their share.
inline void add_work(const StepSlice& slice, uint32_t layers, StepWork& work) {
  StepWork rows;
  if (slice.kind == RowKind::kDecode) {
    rows.add_decode(slice.tokens.end);
  } else {
    rows.add_prefill(slice.tokens.begin, slice.tokens.size());
  }
  const uint32_t end = std::min(slice.end_layer, layers);
  work += rows.scaled(static_cast<double>(end) / layers);
}

// Replaces the estimates of links by measurements. Links that have moved nothing keep their estimates.
void set_measured_links(const LinkStats& link, CostModel& costs);

// Used by the engine's thread. Writes View::costs and View::length_classes.
class BeliefKeeper {
 public:
  // The arguments outlive it.
  BeliefKeeper(const Beliefs& beliefs, const KvCache& cache, View& view, EngineMetrics& metrics);

  // Predicts the length of a request's output: when it arrives, and when `hidden` is known.
  void predict(LiveRequest& live) const;
  // Whether the predictor wants the hidden row of the prompt's last token.
  bool wants_hidden(const LiveRequest& live) const;
  // A request ends. What was computed for a peer teaches nothing. REQUIRES: the cache still has its tokens.
  void request_ended(const LiveRequest& live, FinishReason reason);
  // A step with this work has succeeded.
  void step_ended(const StepWork& work, const StepResult& result);

  // Before a plan: puts the latest costs into the view. link: null if there is none.
  void show_costs(const LinkStats* link);

 private:
  PromptFeatures features_of(const LiveRequest& live) const;
  void count_prediction(const LiveRequest& live);

  const Beliefs beliefs_;
  const KvCache& cache_;
  View& view_;
  EngineMetrics& metrics_;
};

}  // namespace kvasir
