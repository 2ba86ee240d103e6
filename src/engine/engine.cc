#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/mutant.h"
#include "engine/phase_timer.h"
#include "plan/kv_placement.h"
#include "plan/plan_checker.h"

namespace kvasir {
namespace {

// The longest sleep of a loop in which every request waits for transfers or peers.
constexpr Nanos kLongestSleep = 100 * kNanosPerMilli;

}  // namespace

uint32_t Engine::longest_fit(const CacheOptions& cache) {
  const uint32_t borrowable = cache.borrowable_cells();
  const CellCapacity capacity = {cache.geometry.groups(),
                                 cache.cells(Tier::kDevice),
                                 cache.cells(cache.slower_tier()) - borrowable,
                                 cache.stage_blocks(),
                                 borrowable,
                                 cache.geometry.blocks_per_leaf()};
  return KvPlacement::longest(capacity) * cache.geometry.block_tokens;
}

Engine::Engine(const EngineOptions& options, std::unique_ptr<Policy> policy, Executor& executor,
               const Clock& clock, PlanLog* log, Link* link, const Beliefs& beliefs, Lending* lending)
    : options_(options),
      policy_(std::move(policy)),
      executor_(executor),
      clock_(clock),
      log_(log),
      link_(link),
      lending_(lending),
      inbox_(options_, clock, metrics_.refused_late),
      cache_(options.cache),
      committer_(cache_, link),
      requests_(view_),
      beliefs_(beliefs, cache_, view_, metrics_),
      view_keeper_(options_, view_, requests_, cache_, beliefs_, link),
      watch_(view_, requests_, metrics_),
      recorder_(metrics_, cache_, view_, requests_),
      gate_(options_, view_, requests_, view_keeper_, cache_),
      lifecycle_({clock, inbox_, cache_, requests_, view_keeper_, beliefs_, watch_, recorder_, gate_},
                 options.max_model_len),
      stall_(options.max_decode_stall) {
  const uint32_t fit = longest_fit(options.cache);
  KV_CHECK(options.max_model_len > 0 && options.max_model_len <= fit, "max_model_len={} fit={}",
           options.max_model_len, fit);
  // The committer names one token of a sequence by reference, so no more than one may be unknown.
  KV_CHECK(executor.depth() == 1 || executor.depth() == 2, "depth={}", executor.depth());
  KV_CHECK(!options.cache_events || options.cache.tells_events, "the cache tells no events: {}",
           options.cache.tells_events);
  KV_CHECK(lending || options.cache.borrowable_cells() == 0, "there are no peers to borrow {} cells from",
           options.cache.borrowable_cells());
  if (link_) {
    observe_link();
    link_->set_wake([this] { inbox_.wake(); });
  }
  if (lending_) {
    peers_.emplace(options_, *lending_, clock_, cache_, view_, requests_, metrics_.peers);
    lending_->set_wake([this] { inbox_.wake(); });
  }
}

Engine::~Engine() {
  stop();
}

void Engine::observe_link() {
  if (!link_) return;
  std::lock_guard lock(link_metrics_mutex_);
  metrics_.link.set(link_->stats());
}

// ---------------------------------------------------------------- the owner's thread

void Engine::start() {
  KV_CHECK(!thread_.joinable(), "the engine runs already");
  thread_ = std::thread([this] { run(); });
}

void Engine::stop() {
  inbox_.stop();
  // A step whose layers all wait for a slow link could take longer than the caller has time for.
  executor_.give_up_waiting();
  if (thread_.joinable()) thread_.join();
  // From here on this is the engine's thread.
  while (!in_flight_.empty()) publish(executor_.wait());
  if (link_) link_->set_wake({});
  if (lending_) lending_->set_wake({});
  drain_inbox();
  for (SeqId id : requests_.ids()) lifecycle_.end(*requests_.find(id), FinishReason::kAbort);
  recorder_.update_gauges();
}

size_t Engine::restore_prefixes(std::span<const DiskEntry> cells) {
  KV_CHECK(next_step_ == 1 && requests_.empty(), "the engine ran already: step={}", next_step_);
  const size_t blocks = cache_.restore(cells);
  recorder_.update_gauges();
  return blocks;
}

std::vector<DiskEntry> Engine::save_prefixes(Nanos patience) {
  KV_CHECK(inbox_.stopped() && in_flight_.empty(), "the engine runs");
  const MonotonicClock real;
  const Nanos end = real.now() + patience;
  for (;;) {
    committer_.drain_transfers();
    committer_.save_idle();
    if (cache_.transfers_in_flight() == 0 || real.now() >= end) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return cache_.saved_cells();
}

// ---------------------------------------------------------------- the loop

void Engine::run() {
  const auto timeout = [this]() -> std::optional<Nanos> {
    if (!has_work()) return std::nullopt;
    return idle_ ? kLongestSleep : 0;
  };
  while (inbox_.wait(timeout())) step();
}

bool Engine::step() {
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
  if (options_.check_integrity) {
    const Status status = check_integrity();
    KV_CHECK(status.ok(), "{}", status.message());
  }
  return has_work();
}

bool Engine::executor_full() const {
  return in_flight_.size() >= static_cast<size_t>(executor_.depth());
}

bool Engine::waits_for_others() const {
  return cache_.transfers_in_flight() > 0 || (peers_ && peers_->expects_something());
}

// The only place where the cache learns of arrivals, cancellations and the ends of transfers.
void Engine::drain_inbox() {
  PhaseTimer timer(clock_, metrics_.seconds_drain);
  Inbox::Messages messages = inbox_.take();
  for (Arrival& arrival : messages.arrivals) lifecycle_.arrive(std::move(arrival));
  for (auto [id, reason] : messages.cancels) {
    if (LiveRequest* live = requests_.find(id)) lifecycle_.end(*live, reason);
  }
  committer_.drain_transfers();
  lifecycle_.cut_back(in_flight_);
  if (!peers_) return;
  peers_->turn();
  lifecycle_.cut_back(in_flight_);
}

StepPlan Engine::make_plan() {
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

StepPlan Engine::ask_policy() {
  view_keeper_.update(
      {clock_.now(), StepId{next_step_}, static_cast<uint32_t>(in_flight_.size()), stall_.prefill_rows()});
  const std::string state = log_ ? policy_->save_state() : std::string();
  StepPlan plan = policy_->plan(view_);
  if (log_) log_->append(view_, state, plan);
  return plan;
}

Step Engine::apply(const StepPlan& plan) {
  recorder_.planned(plan);
  PhaseTimer timer(clock_, metrics_.seconds_commit);
  Step step = committer_.apply(plan, view_.next_step);
  lifecycle_.apply(plan, view_.now);
  if (peers_) peers_->ask(plan, !in_flight_.empty());
  return step;
}

bool Engine::submit_step(Step step) {
  if (step.slices.empty()) return false;
  PhaseTimer timer(clock_, metrics_.seconds_commit);
  in_flight_.push_back(complete(step));
  recorder_.submitted(step, in_flight_.back().rows_again);
  ++next_step_;
  executor_.submit(std::move(step));
  if (peers_) peers_->step_submitted();
  return true;
}

// Fills in what the committer leaves open, and notes what the step runs.
SubmittedStep Engine::complete(Step& step) {
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
void Engine::add_history(Step& step, StepSlice& slice, const LiveRequest& live) const {
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
uint32_t Engine::hidden_from(const LiveRequest& live, const StepSlice& slice) const {
  if (slice.kind == RowKind::kRestore || live.generated > 0) return StepSlice::kNoHidden;
  if (live.pooled.kind() == Pooling::kMean) return mutant(Mutant::kPooledTwice) ? 0 : live.pooled.next();
  const bool last = slice.samples && slice.tokens.end == live.prompt_tokens;
  const bool wanted = live.pooled.kind() == Pooling::kLast || beliefs_.wants_hidden(live);
  return last && wanted ? live.prompt_tokens - 1 : StepSlice::kNoHidden;
}

StepResult Engine::wait_for_oldest() {
  PhaseTimer timer(clock_, metrics_.seconds_execute);
  return executor_.wait();
}

// What the oldest step has given goes to the cache, to the sinks and to the counters.
void Engine::publish(StepResult result) {
  PhaseTimer timer(clock_, metrics_.seconds_publish);
  KV_CHECK(!in_flight_.empty(), "step={}", raw(result.id));
  const SubmittedStep step = std::move(in_flight_.front());
  in_flight_.pop_front();
  const Nanos now = clock_.now();
  ++metrics_.steps;
  lifecycle_.leave_flight(step);
  const std::vector<SeqId> void_rows = committer_.step_ended(result);
  lifecycle_.cut_back(in_flight_);
  if (!result.status.ok()) {
    log_error("step {} failed: {}", raw(result.id), result.status.message());
    lifecycle_.fail(step, result.status);
    return;
  }
  observe(step, result);
  lifecycle_.publish(step, result, void_rows, now);
}

void Engine::tell_cache_events() {
  CacheEventSink& sink = *options_.cache_events;
  std::vector<CacheEvent> events = sink.wants_everything() ? cache_.take_all_events() : cache_.take_events();
  if (!events.empty()) sink.publish(std::move(events));
}

void Engine::observe(const SubmittedStep& step, const StepResult& result) {
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
