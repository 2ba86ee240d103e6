#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "contract/plan_checker.h"
#include "contract/residence.h"
#include "engine/phase_timer.h"

namespace kvasir {
namespace {

// A link that has moved nothing for so long, beyond a few times what it should take, stands still.
constexpr Nanos kLinkPatience = 2 * kNanosPerSecond;
constexpr double kPatienceFactor = 4;
// What peers have not answered of a layer by then they will not: that is their operations' deadline.
constexpr Nanos kPeersPatience = 2 * kNanosPerSecond;
// Of a disk that has moved nothing yet: a slow one's.
constexpr double kUnknownDiskBytesPerS = 50e6;

// Seconds that the link should take for what it has queued and these.
double expected_seconds(const LinkStats& link, const std::vector<Firing>& firings) {
  uint64_t bytes = link.queued_bytes;
  for (const Firing& f : firings) bytes += f.transfer.bytes();
  const auto seconds = [&](double speed) { return speed > 0 ? static_cast<double>(bytes) / speed : 0; };
  if (!link.has_disk) return seconds(link.bytes_per_s);
  // Nobody says how much of it is the disk's.
  return std::max(seconds(link.bytes_per_s),
                  seconds(link.disk_bytes_per_s > 0 ? link.disk_bytes_per_s : kUnknownDiskBytesPerS));
}

}  // namespace

uint32_t Engine::longest_fit(const CacheOptions& cache) {
  const uint32_t borrowable = cache.borrowable_cells();
  const CellCapacity capacity = {cache.geometry.groups(),
                                 cache.cells(Tier::kDevice),
                                 cache.cells(cache.slower_tier()) - borrowable,
                                 cache.stage_blocks(),
                                 borrowable,
                                 cache.geometry.blocks_per_leaf()};
  return Residence::longest(capacity) * cache.geometry.block_tokens;
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
      beliefs_(beliefs),
      cache_(options.cache),
      committer_(cache_, link),
      requests_(view_),
      stall_(options.max_decode_stall) {
  const uint32_t fit = longest_fit(options.cache);
  KV_CHECK(options.max_model_len > 0 && options.max_model_len <= fit, "max_model_len={} fit={}",
           options.max_model_len, fit);
  // The committer names one token of a sequence by reference, so no more than one may be unknown.
  KV_CHECK(executor.depth() == 1 || executor.depth() == 2, "depth={}", executor.depth());
  view_.geometry = options.cache.geometry;
  view_.limits = options.limits;
  view_.stage_blocks = options.cache.stage_blocks();
  view_.scratch_tokens = options.scratch_tokens;
  view_.peers.most_borrowed = options.cache.borrowable_cells();
  KV_CHECK(lending_ || view_.peers.most_borrowed == 0, "borrows {} cells of nobody",
           view_.peers.most_borrowed);
  if (beliefs_.lengths) view_.length_classes = beliefs_.lengths->classes();
  metrics_.kv_blocks_total = options.cache.cells(Tier::kDevice) / options.cache.geometry.groups();
  metrics_.kv_block_bytes = options.cache.geometry.kv_block_bytes();
  for (Tier tier : kAllTiers) metrics_.tiers[index_of(tier)].bytes_total = cache_.map().total_bytes(tier);
  metrics_.stage_ring_bytes = options.cache.stage_bytes;
  if (link_) {
    observe_link();
    link_->set_wake([this] {
      std::lock_guard lock(mutex_);
      ++transfers_ended_;
      wake_.notify_one();
    });
  }
  if (lending_) {
    metrics_.peers.present = true;
    lending_->set_wake([this] {
      std::lock_guard lock(mutex_);
      ++peers_called_;
      wake_.notify_one();
    });
  }
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
  const Nanos now = clock_.now();
  const Nanos wait = pace_.wait(queued_reqs_);
  if (options_.refuse_late && request.slo.ttft_ms > 0 && 4 * wait > request.slo.ttft_ms * kNanosPerMilli) {
    ++metrics_.refused_late;
    return error(ErrorCode::kExhausted,
                 "the queue is about {} ms long, too long for a TTFT of {} ms: try again later",
                 wait / kNanosPerMilli, request.slo.ttft_ms);
  }
  const SeqId seq{next_id_++};
  ++queued_reqs_;
  pace_.came(now, queued_reqs_);
  queued_tokens_ += prompt;
  ++live_reqs_;
  arrivals_.push_back({seq, std::move(request), std::move(sink), now});
  wake_.notify_one();
  return RequestId{raw(seq)};
}

void Engine::cancel(RequestId id, FinishReason reason) {
  std::lock_guard lock(mutex_);
  cancels_.emplace_back(SeqId{raw(id)}, reason);
  wake_.notify_one();
}

void Engine::observe_link() {
  if (!link_) return;
  std::lock_guard lock(link_metrics_mutex_);
  metrics_.link.set(link_->stats());
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
  // A step whose layers all wait for a slow link could take longer than whoever stops the engine has.
  executor_.give_up_waiting();
  if (thread_.joinable()) thread_.join();
  // What is left, also where the caller brought the thread.
  while (!in_flight_.empty()) publish(executor_.wait());
  if (link_) link_->set_wake({});
  if (lending_) lending_->set_wake({});
  drain_inbox();
  for (SeqId id : requests_.ids()) finish(*requests_.find(id), FinishReason::kAbort, {}, "");
  update_gauges();
}

size_t Engine::restore_prefixes(std::span<const DiskEntry> cells) {
  KV_CHECK(next_step_ == 1 && requests_.empty(), "the engine ran already: step={}", next_step_);
  const size_t blocks = cache_.restore(cells);
  update_gauges();
  return blocks;
}

std::vector<DiskEntry> Engine::save_prefixes(Nanos patience) {
  KV_CHECK(stopping_ && in_flight_.empty(), "the engine runs: stopping={}", stopping_);
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
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      // The end of a transfer that outlived its request is one more thing to hear of: its frames come free.
      wake_.wait(lock, [&] {
        return stopping_ || !arrivals_.empty() || !cancels_.empty() || !requests_.empty() ||
               !in_flight_.empty() || transfers_ended_ != transfers_seen_ || peers_called_ != peers_heard_;
      });
      if (stopping_) return;
    }
    step();
    if (turned_idle_) wait_for_transfer();
  }
}

// Every request waits for bytes: sleeps until some have come, or something else happens.
void Engine::wait_for_transfer() {
  std::unique_lock lock(mutex_);
  const uint64_t seen = transfers_seen_;
  wake_.wait_for(lock, std::chrono::milliseconds(100), [&] {
    return stopping_ || !arrivals_.empty() || !cancels_.empty() || transfers_ended_ != seen ||
           peers_called_ != peers_heard_;
  });
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
  committer_.save_idle();
  turned_idle_ = !submitted && in_flight_.empty() && !requests_.empty() &&
                 (cache_.transfers_in_flight() > 0 || view_.peers.asked > 0 || borrow_next_ > 0 ||
                  recall_next_ > 0 || ask_again_at_ > 0 || yields_to_peer(view_));
  update_gauges();
  if (options_.check_integrity) {
    const Status status = cache_.check_integrity();
    KV_CHECK(status.ok(), "{}", status.message());
  }
  return !requests_.empty() || !in_flight_.empty();
}

// The only place where the map learns of arrivals, cancels and the ends of transfers.
void Engine::drain_inbox() {
  PhaseTimer timer(clock_, metrics_.seconds_drain);
  std::vector<Arrival> arrivals;
  std::vector<std::pair<SeqId, FinishReason>> cancels;
  {
    std::lock_guard lock(mutex_);
    arrivals.swap(arrivals_);
    cancels.swap(cancels_);
    transfers_seen_ = transfers_ended_;
    peers_heard_ = peers_called_;
  }
  for (Arrival& a : arrivals) {
    auto live = std::make_unique<LiveRequest>();
    live->id = a.seq;
    live->sampling = a.request.sampling;
    live->stop_tokens = std::move(a.request.stop_tokens);
    live->sink = std::move(a.sink);
    live->priority = a.request.priority;
    live->slo = a.request.slo;
    live->output_tokens_hint = a.request.output_tokens_hint;
    live->arrival = a.at;
    live->prompt_tokens = static_cast<uint32_t>(a.request.prompt.size());
    live->max_total_tokens =
        a.request.max_tokens == 0 ? options_.max_model_len : live->prompt_tokens + a.request.max_tokens;
    cache_.add_sequence(a.seq, std::move(a.request.prompt), a.request.cache_salt);
    LiveRequest& added = requests_.add(std::move(live));
    predict_length(added);
    refresh(added, requests_.view_of(added));
    metrics_.request_prompt_tokens.observe(added.prompt_tokens);
  }
  for (auto [id, reason] : cancels) {
    if (LiveRequest* live = requests_.find(id)) finish(*live, reason, {}, "");
  }
  committer_.drain_transfers();
  void_cut_back();
  deal_with_peers();
}

// Plans and submits the next step if the executor takes one more. False: nothing was submitted.
bool Engine::submit_next() {
  if (in_flight_.size() >= static_cast<size_t>(executor_.depth())) return false;
  if (view_.running.empty() && view_.waiting.empty()) return false;
  const StepPlan plan = make_plan();
  count_partial_histories(plan);

  PhaseTimer timer(clock_, metrics_.seconds_commit);
  Step step = committer_.apply(plan, view_.next_step);
  apply_failures(plan);
  apply_states(plan);
  ask_peers(plan);
  if (step.slices.empty()) return false;
  std::vector<Member> members;
  uint32_t rows_again = 0;
  StepWork work;
  for (StepSlice& slice : step.slices) {
    add_work(slice, options_.cache.geometry.layers, work);
    LiveRequest& live = *requests_.find(slice.seq);
    slice.sampling = live.sampling;
    slice.wants_hidden = wants_hidden(live, slice);
    // Such rows are not the sequence's progress, only work.
    if (cache_.computes_again(slice.seq, slice.tokens)) {
      rows_again += slice.tokens.size();
      continue;
    }
    members.push_back({slice.seq, slice.kind, slice.tokens.size(), slice.samples});
  }
  set_patience(step);
  metrics_.iteration_tokens.observe(step.row_count());
  if (!step.staged.empty()) ++metrics_.steps_staged;
  metrics_.tokens_computed_again += rows_again;
  for (const KvProjection& p : step.projections) {
    metrics_.tokens_projected += p.tokens;
    work.projected_tokens += p.tokens;
  }
  in_flight_.push_back({std::move(members), rows_again, work});
  ++next_step_;
  executor_.submit(std::move(step));
  stuck_since_ = 0;
  return true;
}

// Where rows that need no transfer are in the step too, they wait no longer than the stall budget in all;
// where every row waits for its own, as long as a link that moves can take for them.
void Engine::set_patience(Step& step) const {
  if (step.waits.empty() && step.remote.empty()) return;
  const double expected = link_ ? expected_seconds(link_->stats(), step.firings) : 0;
  step.max_stall = kLinkPatience + from_seconds(std::min(kPatienceFactor * expected, 3600.0));
  for (size_t i = 0; i < step.remote.size(); ++i) {
    if (i == 0 || step.remote[i].layer != step.remote[i - 1].layer) step.max_stall += kPeersPatience;
  }
  if (!all_wait(step) && stall_.most() > 0) step.max_stall = std::min(step.max_stall, stall_.most());
}

// What of their histories those that decode do not keep on the device.
void Engine::count_partial_histories(const StepPlan& plan) {
  const bool decodes = std::any_of(plan.rows.begin(), plan.rows.end(),
                                   [](const Rows& r) { return r.kind == RowKind::kDecode; });
  if (!decodes) return;
  const uint32_t block = view_.geometry.block_tokens;
  uint64_t all = 0, away = 0, again = 0;
  const uint32_t groups = view_.geometry.groups();
  for (const SeqView& s : view_.running) {
    if (!s.decoding()) continue;
    all += s.known_tokens;
    away += uint64_t{s.blocks - s.resident_blocks} * block;
    again += uint64_t{s.dropped.size()} * (s.dropped_end_group - s.dropped_first_group) / groups;
  }
  EngineMetrics::PartialHistories& m = metrics_.partial;
  if (away == 0) {
    ++m.steps_none;
    return;
  }
  ++m.steps_some;
  m.ratio_sum += static_cast<double>(away) / static_cast<double>(all);
  m.tokens_again += again;
  m.tokens_staged += away - std::min(away, again);
}

StepPlan Engine::make_plan() {
  PhaseTimer timer(clock_, metrics_.seconds_plan);
  for (SeqId id : cache_.settle_claims()) refresh_waiting(id);
  for (size_t i = 0; i < view_.running.size(); ++i) refresh(requests_.running(i), view_.running[i]);
  for (SeqId id : cache_.take_changed()) refresh_waiting(id);
  view_.now = clock_.now();
  view_.next_step = StepId{next_step_};
  view_.device = cache_.budget(Tier::kDevice);
  view_.host = cache_.budget(Tier::kHost);
  view_.disk = cache_.budget(Tier::kDisk);
  view_.reserved_cells = cache_.reserved_cells();
  view_.claims = cache_.claims();
  view_.limits.max_prefill_beside_decodes = stall_.prefill_rows();
  view_.transfers_in_flight = cache_.transfers_in_flight();
  refresh_costs();
  if (link_) {
    const LinkStats stats = link_->stats();
    view_.link = {stats.bytes_per_s, stats.latency_s, stats.queued_bytes};
    if (beliefs_.costs && beliefs_.costs->learning()) set_measured_links(stats, view_.costs);
  }
  view_.steps_in_flight = static_cast<uint32_t>(in_flight_.size());

  const std::string state = log_ ? policy_->save_state() : std::string();
  StepPlan plan = policy_->plan(view_);
  if (log_) log_->append(view_, state, plan);
  const bool still = stands_still(view_, plan);
  const bool waits = still && waits_for_peers();
  if (still && !waits) fail_head(plan);
  break_cycle(plan);
  if (options_.check_plans && !waits) {
    const Status status = check_plan(view_, plan);
    KV_CHECK(status.ok(), "{}\n{}", status.message(), to_string(plan));
  }
  return plan;
}

}  // namespace kvasir
