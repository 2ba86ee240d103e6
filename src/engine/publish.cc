// The loop's last phase: what a step has given goes to the map, to the clients and to the counters.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/mutant.h"
#include "engine/engine.h"
#include "engine/phase_timer.h"

namespace kvasir {

void Engine::publish(StepResult result) {
  PhaseTimer timer(clock_, metrics_.seconds_publish);
  KV_CHECK(!in_flight_.empty(), "step={}", raw(result.id));
  const Submitted step = std::move(in_flight_.front());
  const std::vector<Member>& members = step.members;
  in_flight_.pop_front();
  for (const Member& m : members) {
    if (LiveRequest* live = requests_.find(m.seq)) {
      --live->in_flight;
      if (m.samples) --live->sampling_in_flight;
    }
  }
  const Nanos now = clock_.now();
  ++metrics_.steps;
  const std::vector<SeqId> void_rows = committer_.step_ended(result);
  void_cut_back();
  if (!result.status.ok()) {
    log_error("step {} failed: {}", raw(result.id), result.status.message());
    for (const Member& m : members) {
      if (LiveRequest* live = requests_.find(m.seq)) {
        finish(*live, FinishReason::kError, {},
               "the step that ran this request failed: " + result.status.message());
      }
    }
    return;
  }
  observe(step, result);
  for (const Member& m : members) {
    LiveRequest* live = requests_.find(m.seq);
    if (!live) continue;
    if (std::find(void_rows.begin(), void_rows.end(), m.seq) == void_rows.end()) {
      live->deferrals = 0;
      note_progress(*live);
      continue;
    }
    // Its rows left the step: they will be planned again.
    ++metrics_.deferred_rows;
    if (live->deferrals < UINT16_MAX) ++live->deferrals;
  }
  for (SampledToken& sampled : result.sampled) {
    const bool counts = std::find(void_rows.begin(), void_rows.end(), sampled.seq) == void_rows.end();
    if (!counts && !mutant(Mutant::kDeferredSampled)) continue;
    // A request that has ended since has no use for its last token.
    if (LiveRequest* live = requests_.find(sampled.seq)) publish_token(*live, sampled, now);
  }
  // Those that were preempted while the step was in flight.
  for (const Member& m : members) refresh_waiting(m.seq);
}

void Engine::observe(const Submitted& step, const StepResult& result) {
  uint32_t prefill = step.rows_again;
  uint32_t decode = 0;
  for (const Member& m : step.members) (m.kind == RowKind::kDecode ? decode : prefill) += m.rows;
  stall_.observe(prefill, decode, result.ended - result.started - result.stalled);
  metrics_.seconds_stalled += to_seconds(result.stalled);
  learn_costs(step, result);
}

void Engine::publish_token(LiveRequest& live, SampledToken& sampled, Nanos now) {
  ++live.generated;
  ++metrics_.generation_tokens;
  if (!sampled.hidden.empty()) {
    live.hidden = std::move(sampled.hidden);
    predict_length(live);
  }
  cache_.append_token(live.id, sampled.token);
  if (live.generated == 1) {
    live.first_token = now;
    metrics_.time_to_first_token.observe(to_seconds(now - live.arrival));
    metrics_.request_prefill_time.observe(to_seconds(now - live.first_run));
  } else {
    metrics_.inter_token_latency.observe(to_seconds(now - live.last_token));
    const Nanos bound = Nanos{live.slo.tbt_ms} * kNanosPerMilli;
    if (bound > 0 && now - live.last_token > bound) ++live.late_gaps;
  }
  live.last_token = now;

  std::vector<OutputToken> tokens;
  tokens.push_back({sampled.token, sampled.logprob, std::move(sampled.top)});
  if (std::find(live.stop_tokens.begin(), live.stop_tokens.end(), sampled.token) != live.stop_tokens.end()) {
    finish(live, FinishReason::kStop, std::move(tokens), "");
  } else if (live.prompt_tokens + live.generated >= live.max_total_tokens) {
    finish(live, FinishReason::kLength, std::move(tokens), "");
  } else {
    OutputEvent event;
    event.tokens = std::move(tokens);
    event.cached_prompt_tokens = live.cached_prompt_tokens;
    live.sink->on_output(std::move(event));
  }
}

// One that its client gave up counts where it has missed a bound already, and is not asked for the others.
void Engine::count_attainment(const LiveRequest& live, FinishReason reason, Nanos now) {
  if (!live.slo.any()) return;
  const bool given_up = reason == FinishReason::kAbort;
  const bool failed = reason == FinishReason::kError;
  const bool begun = live.generated > 0;
  const RequestLatency latency = {(begun ? live.first_token : now) - live.arrival, now - live.arrival,
                                  live.last_token - live.first_token, begun ? live.generated - 1 : 0,
                                  live.late_gaps};
  bool good = true;
  bool counts = !given_up;
  for (SloKind kind : kSloKinds) {
    const std::optional<bool> met = attained(kind, live.slo, latency);
    if (!met || (given_up && *met)) continue;
    counts = true;
    good = good && *met && !failed;
    EngineMetrics::Attainment& count = metrics_.slo[static_cast<size_t>(kind)];
    ++count.requests;
    if (*met && !failed) ++count.attained;
  }
  if (!counts) return;
  ++metrics_.goodput.requests;
  if (good) ++metrics_.goodput.attained;
}

void Engine::finish(LiveRequest& live, FinishReason reason, std::vector<OutputToken> tokens, std::string why,
                    bool try_again) {
  const Nanos now = clock_.now();
  OutputEvent event;
  event.tokens = std::move(tokens);
  event.finish = reason;
  event.error = std::move(why);
  event.try_again = try_again;
  event.cached_prompt_tokens = live.cached_prompt_tokens;
  ++metrics_.finished[static_cast<size_t>(reason)];
  metrics_.request_generation_tokens.observe(live.generated);
  if ((reason == FinishReason::kStop || reason == FinishReason::kLength) && live.generated > 0) {
    metrics_.e2e_request_latency.observe(to_seconds(now - live.arrival));
    metrics_.request_decode_time.observe(to_seconds(now - live.first_token));
    if (live.generated > 1) {
      metrics_.time_per_output_token.observe(to_seconds(live.last_token - live.first_token) /
                                             (live.generated - 1));
    }
  }
  count_attainment(live, reason, now);
  learn_length(live, reason);
  cache_.remove_sequence(live.id);
  if (live.queued) leave_queue(live);
  const std::shared_ptr<OutputSink> sink = std::move(live.sink);
  requests_.remove(live);
  update_gauges();
  // The client hears last: what it reads of the metrics after its answer is true.
  sink->on_output(std::move(event));
  std::lock_guard lock(mutex_);
  if (--live_reqs_ == 0) idle_.notify_all();
}

}  // namespace kvasir
