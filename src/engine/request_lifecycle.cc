#include "engine/request_lifecycle.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "base/mutant.h"
#include "base/patiently.h"

namespace kvasir {

void RequestLifecycle::arrive(Arrival arrival) {
  const QueueLimits::Place place = {arrival.request.prompt.size(), arrival.request.tenant.id};
  try {
    admit(arrival);
  } catch (const std::bad_alloc&) {
    if (!arrival.request.for_peer) p_.metrics.turned_away();
    p_.inbox.left_queue(place);
    fail_for_memory(*arrival.sink);
  }
}

// All or nothing.
void RequestLifecycle::admit(Arrival& arrival) {
  GenerationRequest& request = arrival.request;
  auto live = std::make_unique<LiveRequest>();
  live->id = arrival.seq;
  live->sampling = request.sampling;
  live->stop_tokens = std::move(request.stop_tokens);
  live->sink = arrival.sink;
  live->timeline = std::move(request.timeline);
  if (live->timeline) live->timeline->arrived(arrival.at);
  live->label = std::move(request.label);
  live->priority = request.priority;
  live->weight = weight_of(request.priority);
  live->slo = request.slo;
  live->output_tokens_hint = request.output_tokens_hint;
  live->tenant = request.tenant;
  live->for_peer = request.for_peer;
  live->arrival = arrival.at;
  live->prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  live->sampling.prompt_tokens = live->prompt_tokens;
  live->max_total_tokens =
      request.max_tokens == 0 ? max_model_len_ : live->prompt_tokens + request.max_tokens;
  live->pooled = PooledRows(request.pooling);
  // A position that is cached has no logits and no hidden row.
  const bool adopts = live->sampling.prompt_logprobs < 0 && request.pooling != Pooling::kMean;
  p_.cache.add_sequence(arrival.seq, std::move(request.prompt), request.cache_salt, adopts);
  LiveRequest* added = nullptr;
  try {
    added = &p_.requests.add(std::move(live));
    p_.beliefs.predict(*added);
    p_.view.refresh(*added);
    p_.gate.arrived(*added);
  } catch (const std::bad_alloc&) {
    if (added) p_.requests.remove(*added);
    p_.cache.remove_sequence(arrival.seq);
    throw;
  }
  p_.metrics.arrived(*added);
}

void RequestLifecycle::fail_for_memory(OutputSink& sink) {
  OutputEvent event;
  event.finish = FinishReason::kError;
  event.error =
      patiently([] { return std::string("the server has no memory for this request: try again later"); });
  event.try_again = true;
  sink.on_output(std::move(event));
  p_.inbox.ended();
}

void RequestLifecycle::abandon() {
  p_.requests.for_each([&](LiveRequest& live) {
    log_request(LogLevel::kWarning, live, "a request failed: there was no memory for a step of the engine");
    const Nanos now = p_.clock.now();
    p_.metrics.ended(live, FinishReason::kError, now);
    if (live.timeline) live.timeline->ended(now);
    if (live.queued) p_.inbox.left_queue({live.prompt_tokens, live.tenant.id});
    fail_for_memory(*live.sink);
  });
}

void RequestLifecycle::end(LiveRequest& live, FinishReason reason, OutputEvent event, std::string why,
                           bool try_again) {
  event.finish = reason;
  event.error = std::move(why);
  event.try_again = try_again;
  event.cached_prompt_tokens = live.cached_prompt_tokens;
  const Nanos now = p_.clock.now();
  // First what may throw: until the end the request is one of those that abandon() finds.
  p_.beliefs.request_ended(live, reason);
  p_.cache.remove_sequence(live.id);
  p_.metrics.ended(live, reason, now);
  if (live.timeline) live.timeline->ended(now);
  if (live.queued) {
    p_.inbox.left_queue({live.prompt_tokens, live.tenant.id});
    p_.gate.left(live);
  }
  const std::shared_ptr<OutputSink> sink = std::move(live.sink);
  p_.requests.remove(live);
  p_.metrics.update_gauges();
  // The client hears last: what it reads of the metrics after its answer is true.
  sink->on_output(std::move(event));
  p_.inbox.ended();
}

// ---------------------------------------------------------------- plans

void RequestLifecycle::apply(const StepPlan& plan, Nanos now) {
  for (const Failure& f : plan.failures) {
    end(*p_.requests.find(f.seq), FinishReason::kError, {}, f.reason, /*try_again=*/true);
  }
  for (const Preemption& p : plan.preemptions) preempt(p.seq, plan, now);
  for (const Adoption& a : plan.adoptions) adopt(a);
  for (const Rows& rows : plan.rows) {
    if (rows.kind != RowKind::kRestore) run(rows, now);
  }
  // What was given to, or taken from, a sequence that goes on waiting.
  for (const CopyChange& c : plan.copies) p_.view.refresh_waiting(c.seq);
  for (const Adoption& a : plan.adoptions) p_.view.refresh_waiting(a.seq);
}

void RequestLifecycle::preempt(SeqId id, const StepPlan& plan, Nanos now) {
  LiveRequest& live = *p_.requests.find(id);
  p_.requests.set_state(live, LiveRequest::State::kWaiting);
  ++live.preemptions;
  if (live.timeline) live.timeline->preempted(now);
  p_.watch.preempted(live);
  p_.metrics.preempted(id, plan);
  p_.view.refresh(live);
}

void RequestLifecycle::adopt(const Adoption& adoption) {
  LiveRequest& live = *p_.requests.find(adoption.seq);
  if (live.queued) live.cached_prompt_tokens = adoption.tokens;
  p_.metrics.adopted(live, adoption);
}

void RequestLifecycle::run(const Rows& rows, Nanos now) {
  LiveRequest& live = *p_.requests.find(rows.seq);
  if (live.state == LiveRequest::State::kWaiting) {
    p_.requests.set_state(live, LiveRequest::State::kRunning);
    if (live.timeline) live.timeline->ran(now);
    p_.metrics.admitted(live);
  }
  if (live.queued) {
    live.queued = false;
    live.first_run = now;
    p_.inbox.began({live.prompt_tokens, live.tenant.id}, now);
    p_.gate.began(live);
    p_.metrics.began(live);
  }
  ++live.in_flight;
  if (rows.samples) ++live.sampling_in_flight;
  if (live.known_tokens() >= live.max_total_tokens && rows.samples) {
    p_.requests.set_state(live, LiveRequest::State::kEnding);
  }
}

// ---------------------------------------------------------------- steps

void RequestLifecycle::leave_flight(const SubmittedStep& step) {
  for (const SubmittedStep::Member& m : step.members) {
    LiveRequest* live = p_.requests.find(m.seq);
    if (!live) continue;
    --live->in_flight;
    if (m.samples) --live->sampling_in_flight;
  }
}

void RequestLifecycle::fail_for_copies() {
  for (const KvCache::Failing& failing : p_.cache.take_failing()) {
    LiveRequest* live = p_.requests.find(failing.seq);
    if (!live) continue;
    const std::string why =
        "copies of this request's keys and values between the tiers fail: " + failing.status.message();
    log_request(LogLevel::kError, *live, why);
    end(*live, FinishReason::kError, {}, why, /*try_again=*/false);
  }
}

void RequestLifecycle::fail(const SubmittedStep& step, const Status& status) {
  for (const SubmittedStep::Member& m : step.members) {
    LiveRequest* live = p_.requests.find(m.seq);
    if (!live) continue;
    const std::string why = "the step that ran this request failed: " + status.message();
    log_request(LogLevel::kWarning, *live, why);
    end(*live, FinishReason::kError, {}, why,
        /*try_again=*/status.code() == ErrorCode::kExhausted);
  }
}

void RequestLifecycle::publish(const SubmittedStep& step, StepResult& result,
                               std::span<const SeqId> void_rows, Nanos now) {
  const auto counts = [&](SeqId id) {
    return std::find(void_rows.begin(), void_rows.end(), id) == void_rows.end();
  };
  for (const SubmittedStep::Member& m : step.members) {
    LiveRequest* live = p_.requests.find(m.seq);
    if (!live) continue;
    if (counts(m.seq)) {
      const uint32_t ready = p_.cache.ready_tokens(m.seq);
      // Where a deferral sends it back to its block's begin, what comes again is no progress.
      if (live->deferrals == 0 || ready > live->ready_when_deferred || !p_.cache.geometry().states) {
        live->deferrals = 0;
        live->ready_when_deferred = ready;
      }
      p_.watch.ran(*live, ready);
    } else {
      p_.metrics.deferred();
      // A step of its own would bring no mask sooner.
      const bool for_a_mask = live->sampling.constraint && live->sampling.constraint->was_late();
      if (live->deferrals < UINT16_MAX && !for_a_mask) ++live->deferrals;
    }
  }
  for (ScoredToken& token : result.scored) {
    LiveRequest* live = counts(token.seq) ? p_.requests.find(token.seq) : nullptr;
    if (live) add_score(*live, token);
  }
  for (HiddenRow& row : result.hidden) {
    LiveRequest* live = counts(row.seq) ? p_.requests.find(row.seq) : nullptr;
    if (live) add_hidden(*live, row);
  }
  for (SampledToken& token : result.sampled) {
    if (!counts(token.seq) && !mutant(Mutant::kDeferredSampled)) continue;
    // A request that has ended in the meantime has no use for the token.
    if (LiveRequest* live = p_.requests.find(token.seq)) add_token(*live, token, now);
  }
  // Some were preempted while the step was in flight.
  for (const SubmittedStep::Member& m : step.members) p_.view.refresh_waiting(m.seq);
}

// They come in order; those that were computed again come again.
void RequestLifecycle::add_score(LiveRequest& live, ScoredToken& scored) {
  if (scored.position != live.scored.size() + 1) return;
  live.scored.push_back({scored.token, scored.logprob, scored.rank, std::move(scored.top)});
}

void RequestLifecycle::add_hidden(LiveRequest& live, HiddenRow& hidden) {
  live.pooled.add(hidden.position, hidden.row);
  if (hidden.position + 1 != live.prompt_tokens || !p_.beliefs.wants_hidden(live)) return;
  live.hidden = std::move(hidden.row);
  p_.beliefs.predict(live);
}

void RequestLifecycle::add_token(LiveRequest& live, SampledToken& sampled, Nanos now) {
  ++live.generated;
  p_.gate.generated(live);
  p_.watch.generated();
  p_.cache.append_token(live.id, sampled.token);
  p_.metrics.sampled(live, now);
  if (live.generated == 1) {
    live.first_token = now;
    if (live.timeline) live.timeline->began_output(now);
  } else {
    const Nanos bound = Nanos{live.slo.tbt_ms} * kNanosPerMilli;
    if (bound > 0 && now - live.last_token > bound) ++live.late_gaps;
  }
  live.last_token = now;

  OutputEvent event;
  event.tokens.push_back({sampled.token, sampled.logprob, std::move(sampled.top)});
  if (live.generated == 1) {
    event.prompt = std::move(live.scored);
    event.embedding = live.pooled.take(live.prompt_tokens);
  }
  if (std::find(live.stop_tokens.begin(), live.stop_tokens.end(), sampled.token) != live.stop_tokens.end()) {
    end(live, FinishReason::kStop, std::move(event));
  } else if (live.prompt_tokens + live.generated >= live.max_total_tokens) {
    end(live, FinishReason::kLength, std::move(event));
  } else {
    if (live.sampling.constraint) {
      live.sampling.constraint->expect(p_.cache.tokens(live.id).subspan(live.prompt_tokens));
    }
    event.cached_prompt_tokens = live.cached_prompt_tokens;
    live.sink->on_output(std::move(event));
  }
}

void RequestLifecycle::cut_back(std::deque<SubmittedStep>& in_flight) {
  for (SeqId id : p_.cache.take_cut_back()) {
    LiveRequest* live = p_.requests.find(id);
    if (!live) continue;
    // A waiting request will be admitted again, with what is there then.
    if (live->state == LiveRequest::State::kWaiting) p_.cache.end_promises(id);
    for (SubmittedStep& step : in_flight) {
      for (SubmittedStep::Member& m : step.members) {
        if (m.seq != id || !m.samples) continue;
        m.samples = false;
        --live->sampling_in_flight;
      }
    }
    if (live->state == LiveRequest::State::kEnding) {
      p_.requests.set_state(*live, LiveRequest::State::kRunning);
    }
  }
}

}  // namespace kvasir
