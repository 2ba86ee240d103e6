#include "engine/step_loop.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/mutant.h"
#include "base/patiently.h"
#include "engine/phase_timer.h"
#include "plan/plan_checker.h"

namespace kvasir {

StepLoop::StepLoop(const Parts& parts, const Past& past)
    : options_(parts.options),
      policy_(parts.policy),
      executor_(parts.executor),
      clock_(parts.clock),
      log_(parts.log),
      link_(parts.link),
      lending_(parts.lending),
      metrics_(parts.metrics),
      inbox_(parts.inbox),
      in_hand_(parts.in_hand),
      cache_(options_.cache, past.transfers),
      committer_(cache_, link_),
      requests_(view_),
      beliefs_(parts.beliefs, cache_, view_, metrics_),
      view_keeper_(options_, view_, requests_, cache_, beliefs_, link_),
      watch_(view_, requests_, metrics_),
      recorder_(metrics_, cache_, view_, requests_),
      map_({clock_, cache_, view_, requests_, metrics_, link_}, {options_.map, log_}),
      gate_(options_, view_, requests_, view_keeper_, cache_),
      lifecycle_({clock_, inbox_, cache_, requests_, view_keeper_, beliefs_, watch_, recorder_, gate_},
                 options_.max_model_len),
      stall_(options_.max_decode_stall),
      next_step_(past.steps + 1),
      tells_all_(past.steps > 0) {
  if (lending_ && options_.peer_prefixes != PeerPrefixUse::kNever) {
    prefixes_.emplace(PeerPrefixes::Parts{options_, clock_, cache_, view_, requests_, view_keeper_, *link_,
                                          metrics_.peers});
  }
  if (lending_ && options_.peer_prompts != PeerPromptUse::kNever) {
    prompts_.emplace(PeerPrompts::Parts{options_, clock_, cache_, view_, requests_, view_keeper_, inbox_,
                                        link_, metrics_.peers});
  }
  if (prefixes_ || prompts_) beliefs_.show_costs(nullptr);  // they ask before the first plan
  if (lending_) {
    peers_.emplace(options_, *lending_, clock_, cache_, view_, requests_, metrics_.peers,
                   prefixes_ ? &*prefixes_ : nullptr, prompts_ ? &*prompts_ : nullptr);
  }
  recorder_.update_gauges();
}

void StepLoop::finish() {
  while (!in_flight_.empty()) publish(wait_for_oldest());
  drain_inbox();
  for (SeqId id : requests_.ids()) lifecycle_.end(*requests_.find(id), FinishReason::kAbort);
  recorder_.update_gauges();
  map_.turn_ended(next_step_ - 1);
}

void StepLoop::abandon() {
  if (lending_) patiently([this] { lending_->start_anew(); });
  while (at_executor_ > 0) {
    try {
      wait_for_oldest();
    } catch (const std::bad_alloc&) {
      // It has ended all the same.
    }
  }
  // Cancelled first, all of them: none is to begin when one that it waits for has ended.
  cache_.for_each_transfer([&](TransferId id) {
    try {
      link_->cancel(id);
    } catch (const std::bad_alloc&) {
      // Then it ends by itself.
    }
  });
  cache_.for_each_transfer([&](TransferId id) {
    while (link_->wait(id, kNanosPerSecond) == TransferState::kPending) {
    }
  });
  if (link_) patiently([&] { return link_->completed(); });
  lifecycle_.abandon();
}

size_t StepLoop::restore_prefixes(std::span<const DiskEntry> cells) {
  KV_CHECK(next_step_ == 1 && requests_.empty(), "the engine ran already: step={}", next_step_);
  const size_t blocks = cache_.restore(cells);
  recorder_.update_gauges();
  return blocks;
}

std::vector<DiskEntry> StepLoop::save_prefixes(Nanos patience) {
  KV_CHECK(in_flight_.empty(), "the engine runs");
  const MonotonicClock real;
  const Nanos end = real.now() + patience;
  for (;;) {
    committer_.drain_transfers();
    committer_.save_idle();
    if (cache_.transfers_in_flight() == cache_.prefixes_shown() || real.now() >= end) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return cache_.saved_cells();
}

// ---------------------------------------------------------------- the loop

void StepLoop::turn() {
  drain_inbox();
  gate_.update(/*stands_still=*/idle_);
  bool submitted = false;
  if (!executor_full() && !(view_.running.empty() && view_.waiting.empty())) {
    const StepPlan plan = make_plan();
    submitted = submit_step(apply(plan));
  }
  if (!in_flight_.empty() && (executor_full() || !submitted)) publish(wait_for_oldest());
  committer_.save_idle();
  if (options_.cache_events) tell_cache_events();
  idle_ = !submitted && in_flight_.empty() && !requests_.empty() && waits_for_others();
  recorder_.update_gauges();
  map_.turn_ended(next_step_ - 1);
  if (options_.check_integrity) {
    const Status status = check_integrity();
    KV_CHECK(status.ok(), "{}", status.message());
  }
}

bool StepLoop::executor_full() const {
  return in_flight_.size() >= static_cast<size_t>(executor_.depth());
}

bool StepLoop::waits_for_others() const {
  return cache_.transfers_in_flight() > 0 || (peers_ && peers_->expects_something()) ||
         (prefixes_ && prefixes_->holds()) || (prompts_ && prompts_->holds());
}

// The only place where the cache learns of arrivals, cancellations and the ends of transfers.
void StepLoop::drain_inbox() {
  PhaseTimer timer(clock_, metrics_.seconds_drain);
  take_in();  // what a turn that has thrown left
  in_hand_ = inbox_.take(std::move(in_hand_));
  take_in();
  committer_.drain_transfers();
  lifecycle_.cut_back(in_flight_);
  lifecycle_.fail_for_copies();
  if (!peers_) return;
  peers_->turn();
  lifecycle_.cut_back(in_flight_);
  if (prefixes_) prefixes_->update();
  if (prompts_) prompts_->update();
}

void StepLoop::take_in() {
  while (in_hand_.arrived < in_hand_.arrivals.size()) {
    const SeqId seq = in_hand_.arrivals[in_hand_.arrived].seq;
    lifecycle_.arrive(std::move(in_hand_.arrivals[in_hand_.arrived++]));
    if (prefixes_) prefixes_->arrived(seq);
    if (prompts_) prompts_->arrived(seq);
  }
  for (auto [id, reason] : in_hand_.cancels) {
    if (LiveRequest* live = requests_.find(id)) lifecycle_.end(*live, reason);
  }
  in_hand_.cancels.clear();
}

StepPlan StepLoop::make_plan() {
  PhaseTimer timer(clock_, metrics_.seconds_plan);
  StepPlan plan = ask_policy();
  // Nothing may stand still, and the first request then fail, while others are held back.
  if (gate_.holds() && stands_still(view_, plan)) {
    gate_.update(/*stands_still=*/true);
    plan = ask_policy();
  }
  const bool still = stands_still(view_, plan);
  const bool waits = still && peers_ && peers_->keeps_waiting();
  if (still && !waits) watch_.fail_head(plan);
  watch_.break_cycle(plan);
  if (options_.check_plans && !waits) {
    const Status status = check_plan(view_, plan);
    KV_CHECK(status.ok(), "{}\n{}", status.message(), to_string(plan));
  }
  return plan;
}

StepPlan StepLoop::ask_policy() {
  view_keeper_.update(
      {clock_.now(), StepId{next_step_}, static_cast<uint32_t>(in_flight_.size()), stall_.prefill_rows()});
  const std::string state = log_ ? policy_.save_state() : std::string();
  StepPlan plan = policy_.plan(view_);
  if (log_) log_->append(view_, state, plan);
  return plan;
}

Step StepLoop::apply(const StepPlan& plan) {
  recorder_.planned(plan);
  map_.planned(plan);
  PhaseTimer timer(clock_, metrics_.seconds_commit);
  Step step = committer_.apply(plan, view_.next_step);
  lifecycle_.apply(plan, view_.now);
  if (peers_) peers_->ask(plan, !in_flight_.empty());
  return step;
}

bool StepLoop::submit_step(Step step) {
  if (step.slices.empty()) return false;
  PhaseTimer timer(clock_, metrics_.seconds_commit);
  in_flight_.push_back(complete(step));
  recorder_.submitted(step, in_flight_.back().rows_again);
  ++next_step_;
  executor_.submit(std::move(step));
  ++at_executor_;
  if (peers_) peers_->step_submitted();
  return true;
}

// Fills in what the committer leaves open, and notes what the step runs.
SubmittedStep StepLoop::complete(Step& step) {
  SubmittedStep out;
  for (StepSlice& slice : step.slices) {
    add_work(slice, options_.cache.geometry.layers, out.work);
    const LiveRequest& live = *requests_.find(slice.seq);
    slice.sampling = live.sampling;
    add_history(step, slice, live);
    slice.hidden_from = hidden_from(live, slice);
    if (slice.kind == RowKind::kRestore) {
      out.rows_again += slice.tokens.size();
    } else {
      out.members.push_back({slice.seq, slice.kind, slice.tokens.size(), slice.samples});
    }
  }
  for (const KvProjection& p : step.projections) out.work.projected_tokens += p.tokens;
  step.max_stall = max_stall_of(step, link_, stall_.most());
  return out;
}

// What the sampler reads of the sequence beside its logits. It comes from the tokens that are known, which a
// preemption does not lose.
void StepLoop::add_history(Step& step, StepSlice& slice, const LiveRequest& live) const {
  slice.scores = live.sampling.prompt_logprobs >= 0 && slice.kind != RowKind::kRestore &&
                 slice.tokens.begin + 1 < live.prompt_tokens && slice.tokens.end > live.scored.size() &&
                 live.generated == 0;
  if (!slice.scores && !(slice.samples && live.sampling.reads_history())) return;
  if (mutant(Mutant::kOutputForgotten) && live.preemptions > 0) {
    slice.sampling.prompt_tokens = slice.tokens.end;
  }
  const std::span<const Token> known = cache_.tokens(slice.seq);
  // A row that scores reads the token behind its own.
  const size_t count = std::min<size_t>(known.size(), slice.scores ? slice.tokens.end + 1 : slice.tokens.end);
  slice.first_history = static_cast<uint32_t>(step.history.size());
  slice.history_tokens = static_cast<uint32_t>(count);
  step.history.insert(step.history.end(), known.begin(), known.begin() + static_cast<ptrdiff_t>(count));
}

// StepSlice::hidden_from: what is pooled, and what a predictor reads.
uint32_t StepLoop::hidden_from(const LiveRequest& live, const StepSlice& slice) const {
  if (slice.kind == RowKind::kRestore || live.generated > 0) return StepSlice::kNoHidden;
  if (live.pooled.kind() == Pooling::kMean) return mutant(Mutant::kPooledTwice) ? 0 : live.pooled.next();
  const bool last = slice.samples && slice.tokens.end == live.prompt_tokens;
  const bool wanted = live.pooled.kind() == Pooling::kLast || beliefs_.wants_hidden(live);
  return last && wanted ? live.prompt_tokens - 1 : StepSlice::kNoHidden;
}

StepResult StepLoop::wait_for_oldest() {
  PhaseTimer timer(clock_, metrics_.seconds_execute);
  --at_executor_;
  return executor_.wait();
}

// What the oldest step has given goes to the cache, to the sinks and to the counters.
void StepLoop::publish(StepResult result) {
  PhaseTimer timer(clock_, metrics_.seconds_publish);
  KV_CHECK(!in_flight_.empty(), "step={}", raw(result.id));
  const SubmittedStep step = std::move(in_flight_.front());
  in_flight_.pop_front();
  const Nanos now = clock_.now();
  ++metrics_.steps;
  lifecycle_.leave_flight(step);
  const std::vector<SeqId> void_rows = committer_.step_ended(result);
  executor_.step_settled();
  lifecycle_.cut_back(in_flight_);
  if (!result.status.ok()) {
    log_error("step {} failed: {}", raw(result.id), result.status.message());
    lifecycle_.fail(step, result.status);
    return;
  }
  observe(step, result);
  lifecycle_.publish(step, result, void_rows, now);
}

void StepLoop::tell_cache_events() {
  CacheEventSink& sink = *options_.cache_events;
  const bool all = std::exchange(tells_all_, false) || sink.wants_everything();
  std::vector<CacheEvent> events = all ? cache_.take_all_events() : cache_.take_events();
  if (!events.empty()) sink.publish(std::move(events));
}

void StepLoop::observe(const SubmittedStep& step, const StepResult& result) {
  uint32_t prefill = step.rows_again;
  uint32_t decode = 0;
  for (const SubmittedStep::Member& m : step.members) {
    (m.kind == RowKind::kDecode ? decode : prefill) += m.rows;
  }
  stall_.observe(prefill, decode, result.ended - result.started - result.stalled);
  metrics_.seconds_stalled += to_seconds(result.stalled);
  beliefs_.step_ended(step.work, result);
}

}  // namespace kvasir
