#include "simulate/simulation.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "engine/beliefs.h"
#include "exec/sim/sim_executor.h"
#include "sched/beliefs/length_predictors.h"

namespace kvasir {
namespace {

constexpr int32_t kVocabulary = 32'000;
constexpr Token kEnd = 0;  // in no prompt
// Turns in which time does not pass, before we say that the engine hangs.
constexpr int kMostTurns = 10'000;

double mean_of(const Histogram& h) {
  uint64_t count = 0;
  for (size_t i = 0; i <= h.bounds().size(); ++i) count += h.count(i);
  return count > 0 ? h.sum() / static_cast<double>(count) : 0;
}

// The client and the engine of a run, on one thread.
class Run {
 public:
  Run(const SimulationSetup& setup, const std::vector<SimulatedRequest>& requests,
      std::unique_ptr<Policy> policy, LengthPredictor* lengths);
  SimulationOutcome run();

 private:
  // What becomes of one request.
  class Sink final : public OutputSink {
   public:
    Sink(Run& run, size_t index) : run_(run), index_(index) {}
    void on_output(OutputEvent event) override { run_.on_output(index_, event); }

   private:
    Run& run_;
    const size_t index_;
  };

  static SimExecutor::Options executor_options(const SimulationSetup& setup);
  static bool has_link(const SimulationSetup& setup) {
    return setup.engine.cache.host_bytes + setup.engine.cache.disk_bytes > 0;
  }
  std::unique_ptr<Policy> observed(std::unique_ptr<Policy> policy);

  void arrive();
  void send(size_t index);
  void queue(size_t index);
  Status submit(size_t index);
  void on_output(size_t index, const OutputEvent& event);
  void ended(size_t index);
  GenerationRequest request_of(size_t index) const;
  void give_up() { gave_up_ = clock_.now(); }
  void idle();

  const SimulationSetup& setup_;
  const std::vector<SimulatedRequest>& requests_;
  VirtualClock clock_;
  SimLink link_;
  SimExecutor executor_;
  CostBeliefs costs_;
  ObservedPolicy* policy_ = nullptr;  // the engine's
  Engine engine_;

  std::vector<RequestRecord> records_;
  size_t next_ = 0;  // to arrive
  std::deque<size_t> held_;
  int64_t in_flight_ = 0;
  int64_t most_in_flight_ = 0;
  size_t left_;  // have not ended
  // When the client gave up what was left; what comes later nobody hears.
  std::optional<Nanos> gave_up_;
};

SimExecutor::Options Run::executor_options(const SimulationSetup& setup) {
  SimExecutor::Options o;
  o.times = setup.times;
  o.noise = setup.noise;
  o.seed = setup.seed;
  o.vocab_size = kVocabulary;
  o.layers = setup.engine.cache.geometry.layers;
  return o;
}

std::unique_ptr<Policy> Run::observed(std::unique_ptr<Policy> policy) {
  auto observer =
      std::make_unique<ObservedPolicy>(std::move(policy), policy_takes_whole_prompts(setup_.policy));
  policy_ = observer.get();
  return observer;
}

Run::Run(const SimulationSetup& setup, const std::vector<SimulatedRequest>& requests,
         std::unique_ptr<Policy> policy, LengthPredictor* lengths)
    : setup_(setup),
      requests_(requests),
      link_(setup.link, clock_),
      executor_(executor_options(setup), clock_, has_link(setup) ? &link_ : nullptr),
      costs_(CostLearner(setup.costs),
             setup.costs_learn ? CostBeliefs::Learns::kAtOnce : CostBeliefs::Learns::kNever),
      engine_(setup.engine, observed(std::move(policy)), executor_, clock_, setup.log,
              has_link(setup) ? &link_ : nullptr, {&costs_, lengths}),
      records_(requests.size()),
      left_(requests.size()) {}

GenerationRequest Run::request_of(size_t index) const {
  const SimulatedRequest& r = requests_[index];
  GenerationRequest out;
  out.prompt.resize(r.prompt_tokens);
  for (uint32_t i = 0; i < r.prompt_tokens; ++i) {
    out.prompt[i] = 1 + static_cast<Token>(random_bits(setup_.seed, index, i) % (kVocabulary - 1));
  }
  out.sampling.temperature = 1;
  out.sampling.forced_end = r.prompt_tokens + r.output_tokens - 1;
  out.sampling.end_token = kEnd;
  out.stop_tokens = {kEnd};
  out.max_tokens = r.max_tokens;
  out.slo = r.slo;
  out.output_tokens_hint = r.told_output_tokens;
  return out;
}

// The next request comes, and says when the one after it will.
void Run::arrive() {
  const size_t index = next_++;
  if (next_ < requests_.size()) {
    clock_.at(requests_[next_].arrival, [this] { arrive(); });
  } else if (setup_.drain_timeout) {
    clock_.at(clock_.now() + *setup_.drain_timeout, [this] { give_up(); });
  }
  if (setup_.max_concurrency > 0 && in_flight_ >= setup_.max_concurrency) {
    records_[index].state = RequestRecord::State::kHeld;
    held_.push_back(index);
    return;
  }
  send(index);
}

void Run::send(size_t index) {
  RequestRecord& record = records_[index];
  record.state = RequestRecord::State::kSent;
  record.start = clock_.now();
  record.prompt_words = requests_[index].prompt_tokens;
  record.wanted_tokens = requests_[index].output_tokens;
  record.own = requests_[index].own;
  most_in_flight_ = std::max(most_in_flight_, ++in_flight_);
  if (setup_.request_overhead == 0) {
    queue(index);
  } else {
    clock_.at(clock_.now() + setup_.request_overhead, [this, index] { queue(index); });
  }
}

void Run::queue(size_t index) {
  const Status status = submit(index);
  if (status.ok()) return;
  RequestRecord& record = records_[index];
  record.state = RequestRecord::State::kFailed;
  record.refused = status.code() == ErrorCode::kExhausted;
  record.error = status.message();
  ended(index);
}

Status Run::submit(size_t index) {
  const SimulatedRequest& r = requests_[index];
  const uint32_t longest = setup_.engine.max_model_len;
  // As the server does with a length that is forced.
  if (r.prompt_tokens < longest && r.output_tokens > longest - r.prompt_tokens) {
    return error(ErrorCode::kInvalidArgument,
                 "the prompt has {} tokens and the output {}, but the largest length that fits is {} tokens",
                 r.prompt_tokens, r.output_tokens, longest);
  }
  const Result<RequestId> id = engine_.submit(request_of(index), std::make_shared<Sink>(*this, index));
  if (id.ok() && setup_.explain == index) policy_->explain(SeqId{raw(*id)});
  return id.status();
}

void Run::ended(size_t index) {
  records_[index].end = clock_.now();
  --left_;
  if (held_.empty()) {
    --in_flight_;
    return;
  }
  // Not from here: the engine may be in the middle of a step. Until then its place is kept for it.
  const size_t next = held_.front();
  held_.pop_front();
  clock_.at(clock_.now(), [this, next] {
    --in_flight_;
    send(next);
  });
}

void Run::on_output(size_t index, const OutputEvent& event) {
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
    record.prompt_tokens = requests_[index].prompt_tokens;
    record.output_tokens = record.content_chunks;
    record.usage_known = true;
  } else {
    record.state = RequestRecord::State::kFailed;
    record.error = event.error;
  }
  ended(index);
}

// Nothing runs: time passes until something comes.
void Run::idle() {
  Nanos next = clock_.next_event();
  if (const std::optional<Nanos> end = link_.next_end()) next = std::min(next, *end);
  if (next < INT64_MAX) clock_.advance(std::max<Nanos>(0, next - clock_.now()));
}

SimulationOutcome Run::run() {
  if (!requests_.empty()) clock_.at(requests_.front().arrival, [this] { arrive(); });
  int turns = 0;
  while (left_ > 0 && !gave_up_) {
    clock_.advance(0);  // what is due comes before the engine's turn
    const Nanos before = clock_.now();
    const uint64_t changes = policy_->changes();
    const size_t left = left_;
    engine_.step();
    if (clock_.now() != before || left_ != left) {
      turns = 0;
      continue;
    }
    // A plan may preempt or fail somebody and run nothing: then the next one comes at once.
    if (policy_->changes() == changes) idle();
    KV_CHECK(++turns < kMostTurns, "the engine hangs with {} requests left", left_);
  }
  SimulationOutcome out;
  out.load.duration = gave_up_.value_or(clock_.now());
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
  out.has_link = has_link(setup_);
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
  if (setup_.costs_learn) out.cost_error = m.cost_error;
  return out;
}

}  // namespace

Result<SimulationOutcome> simulate(const SimulationSetup& setup,
                                   const std::vector<SimulatedRequest>& requests) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<LengthPredictor> lengths,
                      make_length_predictor(setup.length_predictor));
  KV_ASSIGN_OR_RETURN(std::unique_ptr<Policy> policy, setup.policies(setup.policy));
  Run run(setup, requests, std::move(policy), lengths.get());
  return run.run();
}

}  // namespace kvasir
