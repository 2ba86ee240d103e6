#include "engine/belief_keeper.h"

#include <cmath>

namespace kvasir {
namespace {

constexpr double kWithinTokens = 50;  // the literature counts predictions within 50 tokens as right

}  // namespace

void set_measured_links(const LinkStats& link, CostModel& costs) {
  const auto at = [&](Tier from, Tier to) -> LinkCost& { return costs.links[index_of(from)][index_of(to)]; };
  if (link.bytes_per_s > 0) {
    const LinkCost measured = {link.latency_s, 1 / link.bytes_per_s};
    at(Tier::kDevice, Tier::kHost) = measured;
    at(Tier::kHost, Tier::kDevice) = measured;
  }
  if (!link.has_disk || !(link.disk_bytes_per_s > 0)) return;
  // A disk's latency is not measured while it serves.
  for (Tier memory : {Tier::kDevice, Tier::kHost}) {
    at(memory, Tier::kDisk).seconds_per_byte = 1 / link.disk_bytes_per_s;
    at(Tier::kDisk, memory).seconds_per_byte = 1 / link.disk_bytes_per_s;
  }
}

BeliefKeeper::BeliefKeeper(const Beliefs& beliefs, const KvCache& cache, View& view, EngineMetrics& metrics)
    : beliefs_(beliefs), cache_(cache), view_(view), metrics_(metrics) {
  if (beliefs_.lengths) view_.length_classes = beliefs_.lengths->classes();
}

PromptFeatures BeliefKeeper::features_of(const LiveRequest& live) const {
  PromptFeatures out;
  out.prompt = cache_.tokens(live.id).first(live.prompt_tokens);
  out.temperature = live.sampling.temperature;
  out.top_p = live.sampling.top_p;
  out.output_tokens_hint = live.output_tokens_hint;
  out.hidden = live.hidden;
  return out;
}

void BeliefKeeper::predict(LiveRequest& live) const {
  if (beliefs_.lengths) live.predicted = beliefs_.lengths->predict(features_of(live));
}

bool BeliefKeeper::wants_hidden(const LiveRequest& live) const {
  return beliefs_.lengths != nullptr && !live.for_peer && live.hidden.empty() &&
         beliefs_.lengths->reads_hidden();
}

// An output that its limit has cut would have been longer, by an unknown length. A request that its client
// cancelled says nothing.
void BeliefKeeper::request_ended(const LiveRequest& live, FinishReason reason) {
  if (!beliefs_.lengths || live.for_peer || live.generated == 0) return;
  if (reason == FinishReason::kLength) {
    beliefs_.lengths->learn_at_least(features_of(live), live.predicted, live.generated);
  }
  if (reason != FinishReason::kStop) return;
  beliefs_.lengths->learn(features_of(live), live.predicted, live.generated);
  view_.length_classes = beliefs_.lengths->classes();
  if (live.predicted.output_tokens > 0) count_prediction(live);
}

void BeliefKeeper::count_prediction(const LiveRequest& live) {
  const double over = static_cast<double>(live.predicted.output_tokens) - static_cast<double>(live.generated);
  EngineMetrics::Predictions& m = metrics_.predictions;
  ++m.finished;
  m.error_tokens += std::abs(over);
  m.over_tokens += over;
  if (std::abs(over) <= kWithinTokens) ++m.within_50;
}

void BeliefKeeper::step_ended(const StepWork& work, const StepResult& result) {
  // Deferred rows did an unknown part of their work.
  if (!beliefs_.costs || !result.deferred.empty()) return;
  beliefs_.costs->observe(work, to_seconds(result.ended - result.started - result.stalled));
}

void BeliefKeeper::show_costs(const LinkStats* link) {
  if (!beliefs_.costs) return;
  if (beliefs_.costs->take_latest(view_.costs)) {
    metrics_.cost_error = beliefs_.costs->error();
    metrics_.cost_steps = beliefs_.costs->observed();
    metrics_.cost_steps_dropped = beliefs_.costs->dropped();
  }
  if (link && beliefs_.costs->learning()) set_measured_links(*link, view_.costs);
}

}  // namespace kvasir
