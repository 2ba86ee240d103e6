#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "contract/plan_checker.h"
#include "engine/phase_timer.h"

namespace kvasir {
uint32_t Engine::longest_fit(const CacheOptions& cache) {
  return KvCache(cache).total_blocks() * cache.geometry.block_tokens;
}

Engine::Engine(const EngineOptions& options, std::unique_ptr<Policy> policy, Executor& executor,
               const Clock& clock, PlanLog* log)
    : options_(options),
      policy_(std::move(policy)),
      executor_(executor),
      clock_(clock),
      log_(log),
      cache_(options.cache),
      committer_(cache_),
      requests_(view_) {
  const uint32_t fit = cache_.total_blocks() * options.cache.geometry.block_tokens;
  KV_CHECK(options.max_model_len > 0 && options.max_model_len <= fit, "max_model_len={} fit={}",
           options.max_model_len, fit);
  // The committer names one token of a sequence by reference, so no more than one may be unknown.
  KV_CHECK(executor.depth() == 1 || executor.depth() == 2, "depth={}", executor.depth());
  view_.geometry = options.cache.geometry;
  view_.limits = options.limits;
  metrics_.kv_blocks_total = cache_.total_blocks();
  metrics_.kv_block_bytes = options.cache.geometry.kv_block_bytes();
}

Engine::~Engine() {
  stop();
}

// ---------------------------------------------------------------- any thread

Result<RequestId> Engine::submit(GenerationRequest request, std::shared_ptr<OutputSink> sink) {
  const uint64_t prompt = request.prompt.size();
  if (prompt == 0) return error(ErrorCode::kInvalidArgument, "the prompt is empty: send at least one token");
  if (prompt >= options_.max_model_len) {
    return error(
        ErrorCode::kInvalidArgument,
        "the prompt has {} tokens, and with at least one of output the largest length that fits is {} "
        "tokens: shorten the prompt",
        prompt, options_.max_model_len);
  }
  if (request.max_tokens > options_.max_model_len - prompt) {
    return error(
        ErrorCode::kInvalidArgument,
        "the prompt has {} tokens and max_tokens is {}, but the largest length that fits is {} tokens: "
        "ask for at most {}",
        prompt, request.max_tokens, options_.max_model_len, options_.max_model_len - prompt);
  }
  std::lock_guard lock(mutex_);
  if (draining_ || stopping_) {
    return error(ErrorCode::kUnavailable, "the server is shutting down: try again later, or elsewhere");
  }
  if (queued_reqs_ >= options_.max_num_queued_reqs) {
    return error(ErrorCode::kExhausted, "{} requests are queued already: try again later", queued_reqs_);
  }
  // One that is alone in the queue is taken whatever its length: later would be no better.
  if (options_.max_num_queued_tokens > 0 && queued_reqs_ > 0 &&
      queued_tokens_ + prompt > options_.max_num_queued_tokens) {
    return error(ErrorCode::kExhausted, "{} prompt tokens are queued already: try again later",
                 queued_tokens_);
  }
  const SeqId seq{next_id_++};
  ++queued_reqs_;
  queued_tokens_ += prompt;
  ++live_reqs_;
  arrivals_.push_back({seq, std::move(request), std::move(sink), clock_.now()});
  wake_.notify_one();
  return RequestId{raw(seq)};
}

void Engine::cancel(RequestId id, FinishReason reason) {
  std::lock_guard lock(mutex_);
  cancels_.emplace_back(SeqId{raw(id)}, reason);
  wake_.notify_one();
}

void Engine::start() {
  KV_CHECK(!thread_.joinable(), "the engine runs already");
  thread_ = std::thread([this] { run(); });
}

void Engine::drain() {
  std::lock_guard lock(mutex_);
  draining_ = true;
}

bool Engine::wait_idle(Nanos timeout) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, std::chrono::nanoseconds(timeout), [&] { return live_reqs_ == 0; });
}

void Engine::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  // What is left, also where the caller brought the thread.
  while (!in_flight_.empty()) publish(executor_.wait());
  drain_inbox();
  for (SeqId id : requests_.ids()) finish(*requests_.find(id), FinishReason::kAbort, {}, "");
  update_gauges();
}

// ---------------------------------------------------------------- the loop

void Engine::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] {
        return stopping_ || !arrivals_.empty() || !cancels_.empty() || !requests_.empty() ||
               !in_flight_.empty();
      });
      if (stopping_) return;
    }
    step();
  }
}

bool Engine::step() {
  drain_inbox();
  const bool submitted = submit_next();
  const bool full = in_flight_.size() >= static_cast<size_t>(executor_.depth());
  if (!in_flight_.empty() && (full || !submitted)) {
    StepResult result;
    {
      PhaseTimer timer(clock_, metrics_.seconds_execute);
      result = executor_.wait();
    }
    publish(std::move(result));
  }
  update_gauges();
  if (options_.check_integrity) {
    const Status status = cache_.check_integrity();
    KV_CHECK(status.ok(), "{}", status.message());
  }
  return !requests_.empty() || !in_flight_.empty();
}

// The only place where the map learns of arrivals and cancels.
void Engine::drain_inbox() {
  PhaseTimer timer(clock_, metrics_.seconds_drain);
  std::vector<Arrival> arrivals;
  std::vector<std::pair<SeqId, FinishReason>> cancels;
  {
    std::lock_guard lock(mutex_);
    arrivals.swap(arrivals_);
    cancels.swap(cancels_);
  }
  for (Arrival& a : arrivals) {
    auto live = std::make_unique<LiveRequest>();
    live->id = a.seq;
    live->sampling = a.request.sampling;
    live->stop_tokens = std::move(a.request.stop_tokens);
    live->sink = std::move(a.sink);
    live->priority = a.request.priority;
    live->arrival = a.at;
    live->prompt_tokens = static_cast<uint32_t>(a.request.prompt.size());
    live->max_total_tokens =
        a.request.max_tokens == 0 ? options_.max_model_len : live->prompt_tokens + a.request.max_tokens;
    cache_.add_sequence(a.seq, std::move(a.request.prompt), a.request.cache_salt);
    LiveRequest& added = requests_.add(std::move(live));
    refresh(added, requests_.view_of(added));
    metrics_.request_prompt_tokens.observe(added.prompt_tokens);
  }
  for (auto [id, reason] : cancels) {
    if (LiveRequest* live = requests_.find(id)) finish(*live, reason, {}, "");
  }
}

// Plans and submits the next step if the executor takes one more. False: nothing was submitted.
bool Engine::submit_next() {
  if (in_flight_.size() >= static_cast<size_t>(executor_.depth())) return false;
  if (view_.running.empty() && view_.waiting.empty()) return false;
  const StepPlan plan = make_plan();

  PhaseTimer timer(clock_, metrics_.seconds_commit);
  apply_failures(plan);
  Step step = committer_.apply(plan, view_.next_step);
  apply_states(plan);
  if (step.slices.empty()) return false;
  std::vector<SeqId> members;
  for (StepSlice& slice : step.slices) {
    LiveRequest& live = *requests_.find(slice.seq);
    slice.sampling = live.sampling;
    members.push_back(slice.seq);
  }
  metrics_.iteration_tokens.observe(step.row_count());
  in_flight_.push_back(std::move(members));
  ++next_step_;
  executor_.submit(std::move(step));
  return true;
}

StepPlan Engine::make_plan() {
  PhaseTimer timer(clock_, metrics_.seconds_plan);
  for (size_t i = 0; i < view_.running.size(); ++i) refresh(requests_.running(i), view_.running[i]);
  for (SeqId id : cache_.take_changed()) refresh_waiting(id);
  view_.now = clock_.now();
  view_.next_step = StepId{next_step_};
  view_.device = cache_.device_budget();
  view_.steps_in_flight = static_cast<uint32_t>(in_flight_.size());

  const std::string state = log_ ? policy_->save_state() : std::string();
  StepPlan plan = policy_->plan(view_);
  if (log_) log_->append(view_, state, plan);
  if (options_.check_plans) {
    const Status status = check_plan(view_, plan);
    KV_CHECK(status.ok(), "{}\n{}", status.message(), to_string(plan));
  }
  return plan;
}

void Engine::apply_failures(const StepPlan& plan) {
  for (const Failure& f : plan.failures) finish(*requests_.find(f.seq), FinishReason::kError, {}, f.reason);
}

// Moves requests between waiting and running, and counts what the plan means for them.
void Engine::apply_states(const StepPlan& plan) {
  for (const Preemption& p : plan.preemptions) {
    LiveRequest& live = *requests_.find(p.seq);
    requests_.set_state(live, LiveRequest::State::kWaiting);
    ++live.preemptions;
    ++metrics_.num_preemptions;
    refresh(live, requests_.view_of(live));
  }
  for (const Adoption& a : plan.adoptions) {
    LiveRequest& live = *requests_.find(a.seq);
    metrics_.prefix_cache_hits += a.tokens;
    if (live.queued) {
      live.cached_prompt_tokens = a.tokens;
      metrics_.prompt_tokens_cached += a.tokens;
    }
  }
  for (const Rows& rows : plan.rows) {
    LiveRequest& live = *requests_.find(rows.seq);
    if (live.state == LiveRequest::State::kWaiting) {
      requests_.set_state(live, LiveRequest::State::kRunning);
      if (options_.cache.prefix_caching) metrics_.prefix_cache_queries += live.known_tokens();
    }
    if (live.queued) {
      live.queued = false;
      live.first_run = view_.now;
      metrics_.request_queue_time.observe(to_seconds(view_.now - live.arrival));
      metrics_.prompt_tokens += live.prompt_tokens;
      leave_queue(live);
    }
    ++live.in_flight;
    if (rows.samples) ++live.sampling_in_flight;
    if (live.known_tokens() >= live.max_total_tokens && rows.samples) {
      requests_.set_state(live, LiveRequest::State::kEnding);
    }
  }
  // What was given to, or taken from, a sequence that goes on waiting.
  for (const CopyChange& c : plan.copies) refresh_waiting(c.seq);
  for (const Adoption& a : plan.adoptions) refresh_waiting(a.seq);
  for (const Promise& p : plan.promises) refresh_waiting(p.owner);
}

void Engine::refresh_waiting(SeqId id) {
  LiveRequest* live = requests_.find(id);
  if (live && live->state == LiveRequest::State::kWaiting) refresh(*live, requests_.view_of(*live));
}

void Engine::leave_queue(LiveRequest& live) {
  std::lock_guard lock(mutex_);
  --queued_reqs_;
  queued_tokens_ -= live.prompt_tokens;
}

void Engine::refresh(LiveRequest& live, SeqView& view) const {
  const KvCache::Summary cells = cache_.summary(live.id);
  view.priority = live.priority;
  view.first_token_time = live.first_token;
  view.last_token_time = live.last_token;
  view.prompt_tokens = live.prompt_tokens;
  view.known_tokens = live.known_tokens();
  view.max_total_tokens = live.max_total_tokens;
  view.ready_tokens = cells.ready_tokens;
  view.held_tokens[static_cast<size_t>(Form::kKv)][static_cast<size_t>(Tier::kDevice)] = cells.ready_tokens;
  view.device_blocks = cells.device_blocks;
  view.own_device_blocks = cells.own_device_blocks;
  view.cached_tokens = cells.cached_tokens;
  view.cached_idle_blocks = cells.cached_idle_blocks;
  view.promised_blocks = cells.promised_blocks;
  view.preemptions = live.preemptions;
  view.in_flight = live.in_flight;
}

void Engine::update_gauges() {
  metrics_.num_requests_running = requests_.size() - view_.waiting.size();
  metrics_.num_requests_waiting = view_.waiting.size();
  metrics_.kv_blocks_used = cache_.used_blocks();
  metrics_.kv_blocks_cached = cache_.idle_blocks();
}

}  // namespace kvasir
