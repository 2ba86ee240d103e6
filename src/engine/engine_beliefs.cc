// Where the loop learns, and what of it policies see.
#include <cmath>

#include "engine/engine.h"

namespace kvasir {
namespace {

constexpr double kWithinTokens = 50;  // as the literature counts predictions that are right

}  // namespace

PromptFeatures Engine::features_of(const LiveRequest& live) const {
  PromptFeatures out;
  out.prompt = cache_.tokens(live.id).first(live.prompt_tokens);
  out.temperature = live.sampling.temperature;
  out.top_p = live.sampling.top_p;
  out.output_tokens_hint = live.output_tokens_hint;
  out.hidden = live.hidden;
  return out;
}

void Engine::predict_length(LiveRequest& live) {
  if (beliefs_.lengths) live.predicted = beliefs_.lengths->predict(features_of(live));
}

// The prompt's last row, once.
bool Engine::wants_hidden(const LiveRequest& live, const StepSlice& slice) const {
  return beliefs_.lengths != nullptr && slice.samples && slice.tokens.end == live.prompt_tokens &&
         live.hidden.empty() && beliefs_.lengths->reads_hidden();
}

// An output that its limit has cut would have been longer, nobody knows by how much. What a client has given
// up says nothing.
void Engine::learn_length(const LiveRequest& live, FinishReason reason) {
  if (!beliefs_.lengths || live.generated == 0) return;
  if (reason == FinishReason::kLength) {
    beliefs_.lengths->learn_at_least(features_of(live), live.predicted, live.generated);
  }
  if (reason != FinishReason::kStop) return;
  beliefs_.lengths->learn(features_of(live), live.predicted, live.generated);
  view_.length_classes = beliefs_.lengths->classes();
  if (live.predicted.output_tokens == 0) return;
  const double over = static_cast<double>(live.predicted.output_tokens) - static_cast<double>(live.generated);
  EngineMetrics::Predictions& m = metrics_.predictions;
  ++m.finished;
  m.error_tokens += std::abs(over);
  m.over_tokens += over;
  if (std::abs(over) <= kWithinTokens) ++m.within_50;
}

void Engine::learn_costs(const Submitted& step, const StepResult& result) {
  // Rows that left the step did some of their work: nobody knows how much.
  if (!beliefs_.costs || !result.deferred.empty()) return;
  beliefs_.costs->observe(step.work, to_seconds(result.ended - result.started - result.stalled));
}

void Engine::refresh_costs() {
  if (!beliefs_.costs || !beliefs_.costs->take_latest(view_.costs)) return;
  metrics_.cost_error = beliefs_.costs->error();
  metrics_.cost_steps = beliefs_.costs->observed();
  metrics_.cost_steps_dropped = beliefs_.costs->dropped();
}

}  // namespace kvasir
