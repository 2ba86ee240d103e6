// The served load of a full profile: a server in this process, whose executor is watched, and its client.
#include <algorithm>
#include <memory>
#include <utility>

#include "apps/bench/load_runner.h"
#include "apps/profile/full_profile.h"
#include "base/affinity.h"
#include "base/units.h"
#include "runtime/engine_options.h"
#include "runtime/tier_sizes.h"
#include "sched/registry.h"
#include "server/backend.h"
#include "server/server.h"

namespace kvasir {
namespace {

constexpr uint64_t kCacheBytes = 1 * kGiB;
constexpr Nanos kServedPatience = 30 * kNanosPerSecond;
constexpr double kShareOfAlone = 0.1;  // of a policy's seconds

struct Phase {
  int64_t concurrency;
  int64_t prompt, output;  // tokens, in the mean
};
constexpr Phase kPhases[] = {{2, 60, 60}, {6, 40, 90}, {16, 120, 50}, {32, 40, 90}, {64, 60, 80}};
constexpr Phase kAlone = {1, 40, 4};

// Passes steps on, and records their loads and times, to be read after the engine has stopped.
class WatchedExecutor final : public Executor {
 public:
  struct Seen {
    StepLoad load;
    Nanos started = 0, ended = 0;
    double sequences() const { return static_cast<double>(load.chunks.size()) + load.decode_rows; }
  };

  WatchedExecutor(Executor& inner, uint32_t layers) : inner_(inner), layers_(layers) {}
  int depth() const override { return inner_.depth(); }
  void submit(Step step) override {
    seen_.push_back({load_of(step, layers_)});
    inner_.submit(std::move(step));
  }
  StepResult wait() override {
    StepResult result = inner_.wait();
    seen_.back().started = result.started;
    seen_.back().ended = result.ended;
    return result;
  }
  void give_up_waiting() override { inner_.give_up_waiting(); }
  const std::vector<Seen>& seen() const { return seen_; }

 private:
  Executor& inner_;
  const uint32_t layers_;
  std::vector<Seen> seen_;
};

// The server of `serve`, without beliefs and slower tiers.
class WatchedServer {
 public:
  ~WatchedServer() { stop(); }

  static Result<std::unique_ptr<WatchedServer>> start(const RuntimeOptions& options, const Subject& subject,
                                                      const MonotonicClock& clock) {
    std::unique_ptr<WatchedServer> out(new WatchedServer);
    KV_RETURN_IF_ERROR(out->load(options, subject, clock));
    return out;
  }

  // Keeps the phase's number of requests running for so many seconds, and then gives up those still running.
  Result<LoadOutcome> run(const Phase& phase, double seconds, uint64_t seed) {
    LoadPlan plan;
    plan.target = {"127.0.0.1", std::to_string(server_->port()), ""};
    plan.path = "/v1/completions";
    plan.request.model = "profile";
    plan.request.force_output_length = true;
    RandomPromptSpec spec;
    spec.input_len = phase.prompt;
    spec.output_len = phase.output;
    spec.range_ratio = 0.9;
    spec.seed = seed;
    plan.prompts = random_prompts(spec, 0, 100'000);
    plan.arrivals.resize(plan.prompts.size());
    plan.max_concurrency = phase.concurrency;
    plan.timeout = kServedPatience + from_seconds(seconds);
    plan.drain_timeout = from_seconds(seconds);
    KV_ASSIGN_OR_RETURN(LoadOutcome outcome, run_load(plan));
    if (outcome.interrupted) return error(ErrorCode::kUnavailable, "interrupted");
    for (const RequestRecord& r : outcome.records) {
      if (r.state == RequestRecord::State::kFailed &&
          r.end < outcome.start + outcome.duration - kNanosPerSecond) {
        return error(ErrorCode::kUnavailable, "a request of the profile's own failed: {}", r.error);
      }
    }
    if (!engine_->wait_idle(kServedPatience)) return error(ErrorCode::kUnavailable, "requests do not end");
    return outcome;
  }

  size_t steps() const { return executor_->seen().size(); }
  // REQUIRES: nothing runs
  const std::vector<WatchedExecutor::Seen>& seen() const { return executor_->seen(); }
  void stop() {
    if (engine_) engine_->stop();
    if (server_) server_->stop(0);
  }

 private:
  WatchedServer() = default;

  Status load(const RuntimeOptions& options, const Subject& subject, const MonotonicClock& clock) {
    KV_ASSIGN_OR_RETURN(TokenizerData data, subject.file->read_tokenizer());
    KV_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::create(std::move(data)));
    tokenizer_ = std::make_unique<Tokenizer>(std::move(tokenizer));
    KV_ASSIGN_OR_RETURN(std::unique_ptr<Policy> policy, make_policy(options.scheduling_policy));
    EngineOptions engine = engine_options(options);
    engine.cache.geometry = subject.layout;
    engine.cache.prefix_caching = false;
    engine.cache.numerics_id = subject.engine.cache.numerics_id;
    KV_RETURN_IF_ERROR(subject.device->size(options, engine));
    KV_RETURN_IF_ERROR(subject.device->map_tiers(engine.cache));
    KV_ASSIGN_OR_RETURN(inner_, subject.device->make_executor(options, engine, clock, /*link=*/nullptr,
                                                              /*peers=*/nullptr));
    executor_ = std::make_unique<WatchedExecutor>(*inner_, subject.layout.layers);
    const CpuShares shares = cpu_shares(options);
    engine_ = std::make_unique<Engine>(engine, std::move(policy), *executor_, clock);
    backend_ = make_engine_backend(*engine_);
    const std::vector<int> all_cpus = allowed_cpus();
    if (!shares.others.empty()) keep_on_cpus(shares.others);
    ServerOptions server;
    server.port = 0;
    server.model_names = {"profile"};
    server.version = KVASIR_VERSION;
    KV_ASSIGN_OR_RETURN(server_, Server::start(std::move(server)));
    if (!shares.others.empty()) keep_on_cpus(all_cpus);
    engine_->start();
    ModelService service;
    service.backend = backend_.get();
    service.tokenizer = tokenizer_.get();
    server_->serve(std::move(service));
    return {};
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Executor> inner_;
  std::unique_ptr<WatchedExecutor> executor_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Server> server_;
};

// One request at a time: the first step that begins after a request was sent makes its first token.
void take_alone(const LoadOutcome& outcome, const std::vector<WatchedExecutor::Seen>& steps, size_t from,
                ServedLoad& out) {
  for (const RequestRecord& r : outcome.records) {
    if (r.state != RequestRecord::State::kCompleted) continue;
    while (from < steps.size() && steps[from].started < r.start) ++from;
    if (from == steps.size() || steps[from].ended > r.first) continue;
    out.request_s.push_back(to_seconds((r.first - r.start) - (steps[from].ended - steps[from].started)));
  }
}

void take_steps(const std::vector<WatchedExecutor::Seen>& steps, size_t from, size_t to, ServedLoad& out) {
  for (size_t i = from; i < to; ++i) {
    out.steps.push_back({steps[i].load, to_seconds(steps[i].ended - steps[i].started), 1});
    if (i + 1 < to)
      out.gaps.push_back({steps[i].sequences(), to_seconds(steps[i + 1].started - steps[i].ended)});
  }
}

}  // namespace

Result<ServedLoad> measure_served(const Subject& subject, const MonotonicClock& clock, double seconds) {
  RuntimeOptions serving = subject.options;
  if (serving.kv_cache_memory_bytes == 0) {
    serving.kv_cache_memory_bytes = std::min(kCacheBytes, available_memory() / 2);
  }
  serving.kv_offloading_bytes = serving.kv_offloading_disk_bytes = 0;
  serving.kv_offloading_dir.clear();
  ServedLoad out;
  uint64_t seed = 0x70726f66;  // different from those of other workloads
  for (const char* policy : {"vllm", "sarathi"}) {
    serving.scheduling_policy = policy;
    KV_ASSIGN_OR_RETURN(const std::unique_ptr<WatchedServer> server,
                        WatchedServer::start(serving, subject, clock));
    KV_ASSIGN_OR_RETURN(const LoadOutcome alone, server->run(kAlone, seconds / 2 * kShareOfAlone, seed++));
    take_alone(alone, server->seen(), 0, out);
    for (const Phase& phase : kPhases) {
      const size_t from = server->steps();
      const double share = (1 - kShareOfAlone) / std::size(kPhases);
      KV_ASSIGN_OR_RETURN(const LoadOutcome outcome, server->run(phase, seconds / 2 * share, seed++));
      take_steps(server->seen(), from, server->steps(), out);
    }
  }
  return out;
}

}  // namespace kvasir
