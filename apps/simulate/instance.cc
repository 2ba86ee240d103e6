#include "apps/simulate/instance.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace kvasir {
namespace {

constexpr int32_t kVocabulary = 32'000;
constexpr Token kEnd = 0;  // in no prompt
// Turns in which time does not pass, before we say that the engine hangs.
constexpr int kMostTurns = 10'000;
// What a plan wants of peers they are told in the turn after it.
constexpr int kTurnsWithPeers = 2;
// Each instance has draws of its own; the first one's are those of a run that has no other.
constexpr uint64_t kSeedStep = 0x9e3779b97f4a7c15;
constexpr uint64_t kFirstPrefix = uint64_t{1} << 40;  // streams of tokens from here on are shared prefixes

double mean_of(const Histogram& h) {
  uint64_t count = 0;
  for (size_t i = 0; i <= h.bounds().size(); ++i) count += h.count(i);
  return count > 0 ? h.sum() / static_cast<double>(count) : 0;
}

}  // namespace

bool SimulatedInstance::has_link() const {
  return peer_ || setup_.engine.cache.host_bytes + setup_.engine.cache.disk_bytes > 0;
}

SimLink::Borrowed SimulatedInstance::borrowed() const {
  return peer_ ? SimLink::Borrowed{setup_.engine.cache.peers_begin(), peer_} : SimLink::Borrowed{};
}

SimExecutor::Options SimulatedInstance::executor_options() {
  SimExecutor::Options o;
  o.times = setup_.times;
  o.noise = setup_.noise;
  o.collectives = setup_.collectives_on_link ? &link_ : nullptr;
  o.transfers_yield = setup_.transfers_yield;
  o.restores_beside = setup_.restores_beside;
  o.seed = setup_.seed + own_.number * kSeedStep;
  o.vocab_size = kVocabulary;
  o.layers = setup_.engine.cache.geometry.layers;
  return o;
}

std::unique_ptr<Policy> SimulatedInstance::observed(std::unique_ptr<Policy> policy) {
  auto observer =
      std::make_unique<ObservedPolicy>(std::move(policy), policy_traits(setup_.policy).whole_prompts);
  policy_ = observer.get();
  return observer;
}

SimulatedInstance::SimulatedInstance(const SimulationSetup& setup, InstanceSetup own,
                                     std::unique_ptr<Policy> policy, LengthPredictor* lengths,
                                     VirtualClock& clock, SimPeer* peer)
    : setup_(setup),
      own_(std::move(own)),
      clock_(clock),
      peer_(peer),
      link_(setup.link, clock, borrowed()),
      executor_(executor_options(), clock, has_link() ? &link_ : nullptr, peer),
      costs_(CostLearner(setup.costs),
             setup.costs_learn ? CostBeliefs::Learns::kAtOnce : CostBeliefs::Learns::kNever),
      engine_(setup.engine, observed(std::move(policy)), executor_, clock, setup.log,
              has_link() ? &link_ : nullptr, {&costs_, lengths}, peer),
      records_(own_.requests.size()),
      left_(own_.requests.size()) {
  if (own_.requests.empty()) {
    expect_no_more();
  } else {
    clock_.at(own_.requests.front().arrival, [this] { arrive(); });
  }
}

// ---------------------------------------------------------------- the client

GenerationRequest SimulatedInstance::request_of(size_t index) const {
  const SimulatedRequest& r = own_.requests[index];
  GenerationRequest out;
  out.prompt.resize(r.prompt_tokens);
  const uint64_t seed = setup_.seed + own_.number * kSeedStep;
  for (uint32_t i = 0; i < r.prompt_tokens; ++i) {
    const uint64_t bits = i < r.prefix_tokens ? random_bits(setup_.seed, kFirstPrefix + r.prefix, i)
                                              : random_bits(seed, index, i);
    out.prompt[i] = 1 + static_cast<Token>(bits % (kVocabulary - 1));
  }
  out.sampling.temperature = 1;
  out.sampling.forced_end = r.prompt_tokens + r.output_tokens - 1;
  out.sampling.end_token = kEnd;
  out.stop_tokens = {kEnd};
  out.max_tokens = r.max_tokens;
  out.slo = r.slo;
  out.priority = r.priority;
  out.tenant.id = r.tenant;
  out.output_tokens_hint = r.told_output_tokens;
  return out;
}

// The next request comes, and says when the one after it will.
void SimulatedInstance::arrive() {
  const size_t index = next_++;
  if (next_ < own_.requests.size()) {
    clock_.at(own_.requests[next_].arrival, [this] { arrive(); });
  } else {
    expect_no_more();
  }
  if (setup_.max_concurrency > 0 && in_flight_ >= setup_.max_concurrency) {
    records_[index].state = RequestRecord::State::kHeld;
    held_.push_back(index);
    return;
  }
  send(index, clock_.now());
}

void SimulatedInstance::bind(const SimulatedRequest& request, Nanos now, bool explain) {
  const size_t index = own_.requests.size();
  own_.requests.push_back(request);
  records_.emplace_back();
  ++left_;
  if (explain) own_.explain = index;
  clock_.at(std::max(now, clock_.now()), [this, index] { send(index, own_.requests[index].arrival); });
}

void SimulatedInstance::never_bound() {
  own_.requests.emplace_back();
  records_.emplace_back().state = RequestRecord::State::kHeld;
}

void SimulatedInstance::expect_no_more() {
  if (setup_.drain_timeout) clock_.at(own_.last_arrival + *setup_.drain_timeout, [this] { give_up(); });
}

void SimulatedInstance::send(size_t index, Nanos start) {
  RequestRecord& record = records_[index];
  record.state = RequestRecord::State::kSent;
  record.start = start;
  record.prompt_words = own_.requests[index].prompt_tokens;
  record.wanted_tokens = own_.requests[index].output_tokens;
  record.own = own_.requests[index].own;
  most_in_flight_ = std::max(most_in_flight_, ++in_flight_);
  if (setup_.request_overhead == 0) {
    queue(index);
  } else {
    clock_.at(clock_.now() + setup_.request_overhead, [this, index] { queue(index); });
  }
}

void SimulatedInstance::queue(size_t index) {
  const Status status = submit(index);
  if (status.ok()) return;
  RequestRecord& record = records_[index];
  record.state = RequestRecord::State::kFailed;
  record.refused = status.code() == ErrorCode::kExhausted;
  record.error = status.message();
  ended(index);
}

Status SimulatedInstance::submit(size_t index) {
  const SimulatedRequest& r = own_.requests[index];
  const uint32_t longest = setup_.engine.max_model_len;
  // As the server does with a length that is forced.
  if (r.prompt_tokens < longest && r.output_tokens > longest - r.prompt_tokens) {
    return error(ErrorCode::kInvalidArgument,
                 "the prompt has {} tokens and the output {}, but the largest length that fits is {} tokens",
                 r.prompt_tokens, r.output_tokens, longest);
  }
  const Result<RequestId> id = engine_.submit(request_of(index), std::make_shared<Sink>(*this, index));
  if (id.ok() && own_.explain == index) policy_->explain(SeqId{raw(*id)});
  return id.status();
}

void SimulatedInstance::ended(size_t index) {
  records_[index].end = clock_.now();
  --left_;
  if (own_.ended) {
    const RequestRecord& r = records_[index];
    std::optional<uint32_t> output;
    if (r.state == RequestRecord::State::kCompleted) output = static_cast<uint32_t>(r.output_tokens);
    own_.ended(index, clock_.now(), output);
  }
  if (held_.empty()) {
    --in_flight_;
    return;
  }
  // Not from here: the engine may be in the middle of a step. Until then its place is kept for it.
  const size_t next = held_.front();
  held_.pop_front();
  clock_.at(clock_.now(), [this, next] {
    --in_flight_;
    send(next, clock_.now());
  });
}

void SimulatedInstance::on_output(size_t index, const OutputEvent& event) {
  if (gave_up_) return;
  RequestRecord& record = records_[index];
  const Nanos now = clock_.now();
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    if (record.content_chunks++ == 0) {
      record.first = now;
    } else {
      record.gaps.push_back(now - record.last);
    }
    record.last = now;
  }
  if (!event.finish) return;
  if (*event.finish == FinishReason::kStop || *event.finish == FinishReason::kLength) {
    record.state = RequestRecord::State::kCompleted;
    record.prompt_tokens = own_.requests[index].prompt_tokens;
    record.output_tokens = record.content_chunks;
    record.usage_known = true;
  } else {
    record.state = RequestRecord::State::kFailed;
    record.error = event.error;
  }
  ended(index);
}

// ---------------------------------------------------------------- the engine

// Where nothing runs, time passes until something comes.
Nanos SimulatedInstance::next_turn() const {
  const Nanos now = clock_.now();
  if (idle_turns_ < (peer_ ? kTurnsWithPeers : 1)) return now;
  Nanos next = clock_.next_event();
  if (const std::optional<Nanos> end = link_.next_end()) next = std::min(next, *end);
  if (peer_) next = std::min(next, peer_->next_turn());
  return std::max(next, now);
}

void SimulatedInstance::take_turn(Nanos at) {
  const Nanos last = clock_.now();
  const size_t had = left_;
  clock_.advance(at - last);  // what is due comes before the engine's turn
  if (clock_.now() != last) idle_turns_ = turns_ = 0;
  const Nanos before = clock_.now();
  const uint64_t changes = policy_->changes();
  const size_t left = left_;
  engine_.step();
  if (left_ == 0 && had > 0) ended_at_ = clock_.now();
  if (clock_.now() != before || left_ != left) {
    idle_turns_ = turns_ = 0;
    return;
  }
  // A plan may preempt or fail a sequence and run nothing: then the next plan follows at once.
  idle_turns_ = policy_->changes() == changes ? idle_turns_ + 1 : 0;
  KV_CHECK(++turns_ < kMostTurns, "the engine hangs with {} requests left", left_);
}

SimulationOutcome SimulatedInstance::finish() {
  SimulationOutcome out;
  out.load.duration = gave_up_.value_or(ended_at_.value_or(0));
  out.load.drained_out = gave_up_.has_value();
  if (!gave_up_) give_up();
  engine_.stop();
  engine_.observe_link();
  out.load.records = std::move(records_);
  out.load.max_concurrent = most_in_flight_;
  out.sums = policy_->sums();
  out.samples = policy_->samples();
  out.preempted_s = policy_->preempted_seconds();
  out.life = policy_->life();
  out.link = link_.stats();
  out.has_link = has_link();
  const EngineMetrics& m = engine_.metrics();
  out.steps = m.steps;
  out.busy_s = m.seconds_execute;
  out.preemptions = m.num_preemptions;
  out.preemptions_swapped = m.num_preemptions_swapped;
  out.tokens_projected = m.tokens_projected;
  out.tokens_computed_again = m.tokens_computed_again;
  out.rows_deferred = m.deferred_rows;
  out.seconds_stalled = m.seconds_stalled;
  out.mean_queue_s = mean_of(m.request_queue_time);
  out.mean_prefill_s = mean_of(m.request_prefill_time);
  for (size_t i = 0; i < kCauses; ++i) out.decisions[i] = m.decisions[i];
  if (setup_.costs_learn) out.cost_error = m.cost_error;
  return out;
}

}  // namespace kvasir
