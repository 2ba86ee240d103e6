// What the engine's thread costs per step beside the executor: plan, check, commit and publish for many
// sequences that decode, over an executor that computes nothing.
//
//   engine_steps [--seqs N] [--tokens N] [--steps N]
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "sched/registry.h"

namespace kvasir::bench {
namespace {

struct Options {
  uint32_t seqs = 1600;
  uint32_t tokens = 1024;  // of each prompt
  uint32_t steps = 200;
};

// Samples at once, and takes no time.
class NullExecutor final : public Executor {
 public:
  explicit NullExecutor(const Clock& clock) : clock_(clock) {}
  int depth() const override { return 1; }
  void submit(Step step) override {
    result_ = StepResult{};
    result_.id = step.id;
    result_.started = result_.ended = clock_.now();
    for (const StepSlice& s : step.slices) {
      if (!s.samples) continue;
      SampledToken sampled;
      sampled.seq = s.seq;
      sampled.token = static_cast<Token>(s.tokens.end % 1000);
      result_.sampled.push_back(std::move(sampled));
    }
  }
  StepResult wait() override { return std::move(result_); }

 private:
  const Clock& clock_;
  StepResult result_;
};

class NullSink final : public OutputSink {
 public:
  void on_output(OutputEvent) override {}
};

struct Phases {
  double plan = 0, commit = 0, publish = 0;
};

Phases phases(const EngineMetrics& m) {
  return {m.seconds_plan, m.seconds_commit, m.seconds_publish};
}

// Microseconds per step, once all sequences decode.
Phases measure(const Options& o, const std::string& policy, uint32_t layers_per_group, bool check) {
  EngineOptions options;
  CacheGeometry& g = options.cache.geometry;
  g = {64, 32, layers_per_group, 1024};
  const uint32_t blocks = o.seqs * (g.blocks_for(o.tokens + o.steps) + 2);
  options.cache.device_bytes = g.kv_block_bytes() * blocks;
  options.cache.prefix_caching = false;
  options.limits.max_num_seqs = o.seqs;
  options.limits.max_num_batched_tokens = 1u << 30;
  options.max_model_len = o.tokens + 2 * o.steps + 64;
  options.max_num_queued_reqs = o.seqs;
  options.check_plans = check;
  const MonotonicClock clock;
  NullExecutor executor(clock);
  Engine engine(options, make_policy(policy).value(), executor, clock);
  const auto sink = std::make_shared<NullSink>();
  for (uint32_t i = 0; i < o.seqs; ++i) {
    GenerationRequest request;
    request.prompt.assign(o.tokens, static_cast<Token>(i));
    request.max_tokens = 2 * o.steps + 32;
    (void)engine.submit(std::move(request), sink).value();
  }
  while (engine.metrics().generation_tokens < 2ull * o.seqs) engine.step();
  const Phases before = phases(engine.metrics());
  const uint64_t first = engine.metrics().steps;
  for (uint32_t i = 0; i < o.steps; ++i) engine.step();
  const Phases after = phases(engine.metrics());
  const double steps = static_cast<double>(engine.metrics().steps - first);
  return {1e6 * (after.plan - before.plan) / steps, 1e6 * (after.commit - before.commit) / steps,
          1e6 * (after.publish - before.publish) / steps};
}

int run(const Options& o) {
  fmt::print("{} sequences of {} tokens decode; microseconds of the engine's thread per step\n", o.seqs,
             o.tokens);
  fmt::print("{:<12} {:>8} {:>10} {:>10} {:>14} {:>12} {:>10}\n", "policy", "groups", "plan", "with check",
             "commit", "plan+commit", "publish");
  for (const char* policy : {"sarathi", "vllm", "vllm-swap"}) {
    for (uint32_t layers_per_group : {32u, 4u, 1u}) {
      const Phases checked = measure(o, policy, layers_per_group, true);
      const Phases plain = measure(o, policy, layers_per_group, false);
      fmt::print("{:<12} {:>8} {:>10.0f} {:>10.0f} {:>14.0f} {:>12.0f} {:>10.0f}\n", policy,
                 32 / layers_per_group, plain.plan, checked.plan, plain.commit, plain.plan + plain.commit,
                 plain.publish);
    }
  }
  return 0;
}

}  // namespace
}  // namespace kvasir::bench

int main(int argc, char** argv) {
  kvasir::bench::Options options;
  CLI::App app("The cost of the engine's own work per step");
  app.add_option("--seqs", options.seqs, "sequences that decode");
  app.add_option("--tokens", options.tokens, "tokens of each prompt");
  app.add_option("--steps", options.steps, "steps to measure");
  CLI11_PARSE(app, argc, argv);
  return kvasir::bench::run(options);
}
