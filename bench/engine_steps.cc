// What the engine's thread costs per step beside the executor: plan, check, commit and publish for many
// sequences that decode, over an executor that computes nothing.
//
//   engine_steps [--seqs N] [--tokens N] [--steps N] [--windows N] [--policy NAME] [--device-share S]
//                [--ring-blocks N] [--clock wall|cpu]
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cpu_clock.h"
#include "engine/engine.h"
#include "instant_link.h"
#include "sched/beliefs/cost_beliefs.h"
#include "sched/beliefs/length_predictors.h"
#include "sched/registry.h"

namespace kvasir::bench {
namespace {

struct Options {
  uint32_t seqs = 1600;
  uint32_t tokens = 1024;  // of each prompt
  uint32_t steps = 200;
  uint32_t windows = 1;  // into which the steps are divided; the quickest counts
  std::string policy;    // "": all
  // Where there is a host tier: the share of the prompts that the device has room for, and blocks of which
  // the stage ring holds one layer.
  double device_share = 0.8;
  uint32_t ring_blocks = 2048;
  bool map = false;            // a frame of the cache map at the end of each step
  std::string clock = "wall";  // or cpu: what the thread itself has run, where others use its core
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

// Looks once at how many of those that run are not on the device as a whole.
class CountingPolicy final : public Policy {
 public:
  CountingPolicy(std::unique_ptr<Policy> policy, uint64_t& away) : policy_(std::move(policy)), away_(away) {}
  StepPlan plan(const View& view) override {
    if (away_ == kLook) {
      away_ = static_cast<uint64_t>(std::count_if(view.running.begin(), view.running.end(),
                                                  [](const SeqView& s) { return !s.resident(); }));
    }
    return policy_->plan(view);
  }
  static constexpr uint64_t kLook = UINT64_MAX;

 private:
  const std::unique_ptr<Policy> policy_;
  uint64_t& away_;
};

class NullSink final : public OutputSink {
 public:
  void on_output(OutputEvent) override {}
};

// Takes a frame of the cache map in every step, and adds up what making them took.
class MapCost final : public MapSink {
 public:
  void begin(const MapShape&) override {}
  bool watched() const override { return true; }
  bool wants_frame() const override { return true; }
  void show(MapFrame frame) override {
    took_ += frame.cost;
    ++frames_;
  }
  double microseconds() const { return frames_ == 0 ? 0 : 1e-3 * static_cast<double>(took_) / frames_; }

 private:
  Nanos took_ = 0;
  uint32_t frames_ = 0;
};

struct Phases {
  double plan = 0, commit = 0, publish = 0;
  double frame = 0;   // of the cache map, at the end of a step
  uint64_t away = 0;  // sequences with layers on the host, at the end
};

Phases phases(const EngineMetrics& m) {
  return {m.seconds_plan, m.seconds_commit, m.seconds_publish, 0, 0};
}

// What steps are believed to take: of a large accelerator, and a link of 25 GB/s.
CostModel believed_costs() {
  CostModel costs;
  costs.step_s = 20e-3;
  costs.prefill_row_s = 1e-5;
  costs.decode_row_s = 1e-5;
  for (const auto& [from, to] : {std::pair{Tier::kDevice, Tier::kHost}, {Tier::kHost, Tier::kDevice}}) {
    costs.links[index_of(from)][index_of(to)].seconds_per_byte = 1 / 25e9;
  }
  return costs;
}

// Microseconds per step, once all sequences run. `scarce`: the device has room for a share of them, there is
// a host tier, and every request has a bound and a prediction.
Phases measure(const Options& o, const std::string& policy, uint32_t layers_per_group, bool check,
               bool scarce = false) {
  EngineOptions options;
  CacheGeometry& g = options.cache.geometry;
  g = {64, 32, layers_per_group, 1024};
  options.max_model_len = o.tokens + 2 * o.steps + 64;
  // Also where room is reserved for the greatest length of each.
  const uint32_t blocks = o.seqs * (g.blocks_for(options.max_model_len) + 2);
  options.cache.device_bytes = g.kv_block_bytes() * blocks;
  options.cache.prefix_caching = false;
  options.limits.max_num_seqs = o.seqs;
  options.limits.max_num_batched_tokens = 1u << 30;
  options.max_num_queued_reqs = o.seqs;
  options.check_plans = check;
  if (scarce) {
    options.cache.host_bytes = options.cache.device_bytes;
    const double prompts = o.seqs * g.blocks_for(o.tokens);
    options.cache.device_bytes = g.kv_block_bytes() * static_cast<uint64_t>(prompts * o.device_share);
    options.cache.stage_bytes = o.ring_blocks * g.largest_piece_bytes();
  }
  MapCost map;
  if (o.map) options.map = &map;
  const MonotonicClock wall;
  const CpuClock cpu(CpuClock::Of::kThread);
  const Clock& clock = o.clock == "cpu" ? static_cast<const Clock&>(cpu) : wall;
  NullExecutor executor(clock);
  InstantLink link;
  uint64_t away = 0;
  CostLearnerOptions fixed;
  fixed.refit_every = UINT32_MAX;
  CostBeliefs costs(CostLearner(believed_costs(), fixed), CostBeliefs::Learns::kNever);
  const auto lengths = make_length_predictor("online").value();
  Engine engine(options, std::make_unique<CountingPolicy>(make_policy(policy).value(), away), executor, clock,
                nullptr, scarce ? &link : nullptr, scarce ? Beliefs{&costs, lengths.get()} : Beliefs{});
  const auto sink = std::make_shared<NullSink>();
  for (uint32_t i = 0; i < o.seqs; ++i) {
    GenerationRequest request;
    request.prompt.assign(o.tokens, static_cast<Token>(i));
    request.max_tokens = 2 * o.steps + 32;
    if (scarce) request.slo.tpot_ms = 100;
    request.priority = static_cast<int32_t>(i % 7);  // read by one policy: its order is not that of arrival
    (void)engine.submit(std::move(request), sink).value();
  }
  while (engine.metrics().generation_tokens < (scarce ? 1ull : 2ull) * o.seqs ||
         engine.metrics().num_requests_running < o.seqs) {
    engine.step();
  }
  Phases best;
  for (uint32_t w = 0; w < o.windows; ++w) {
    const Phases before = phases(engine.metrics());
    const uint64_t first = engine.metrics().steps;
    for (uint32_t i = 0; i < std::max(1u, o.steps / o.windows); ++i) engine.step();
    const Phases after = phases(engine.metrics());
    const double us = 1e6 / static_cast<double>(engine.metrics().steps - first);
    const Phases here = {us * (after.plan - before.plan), us * (after.commit - before.commit),
                         us * (after.publish - before.publish), 0, 0};
    // The window in which plan and commit together took least.
    if (w == 0 || here.plan + here.commit < best.plan + best.commit) best = here;
  }
  away = CountingPolicy::kLook;
  engine.step();
  best.away = away;
  best.frame = map.microseconds();
  return best;
}

// A prediction and the lesson of its end, on the engine's thread; with a hidden row of so many elements there
// are two predictions.
void measure_lengths(const char* name, size_t width) {
  const auto predictor = make_length_predictor(name).value();
  Random random(1);
  constexpr int kRequests = 20'000;
  std::vector<Token> prompt(160);
  std::vector<float> row(width);
  Nanos took = 0;
  const MonotonicClock clock;
  for (int i = 0; i < kRequests; ++i) {
    for (Token& t : prompt) t = static_cast<Token>(random.below(50'000));
    PromptFeatures features;
    features.prompt = prompt;
    for (float& element : row) element = static_cast<float>(random.unit() - 0.5);
    const auto tokens = static_cast<uint32_t>(1 + random.below(500));
    const Nanos begin = clock.now();
    LengthPrediction predicted = predictor->predict(features);
    features.hidden = row;
    if (width > 0) predicted = predictor->predict(features);
    predictor->learn(features, predicted, tokens);
    took += clock.now() - begin;
  }
  fmt::print(
      "lengths, {} with rows of {}: {:.1f} microseconds a request, for its predictions and its lesson\n",
      name, width, 1e-3 * static_cast<double>(took) / kRequests);
}

// What learning costs adds to a step of the engine's thread: pushing what a step took and asking for the
// latest model, at the pace of real steps; and adding up the work of a step's slices.
void measure_beliefs(const Options& o) {
  CostBeliefs beliefs(CostLearner(), CostBeliefs::Learns::kOnThread);
  std::vector<StepSlice> slices(o.seqs);
  for (StepSlice& s : slices) {
    s.kind = RowKind::kDecode;
    s.tokens = {o.tokens, o.tokens + 1};
  }
  const MonotonicClock clock;
  CostModel costs;
  std::vector<Nanos> learning, adding;
  for (uint32_t i = 0; i < 10 * o.steps; ++i) {
    const Nanos begin = clock.now();
    StepWork work;
    for (const StepSlice& s : slices) add_work(s, 32, work);
    const Nanos added = clock.now();
    beliefs.observe(work, 1e-3 * (1 + i % 7));
    beliefs.take_latest(costs);
    const Nanos end = clock.now();
    adding.push_back(added - begin);
    learning.push_back(end - added);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  const auto report = [](const char* what, std::vector<Nanos>& times) {
    double sum = 0;
    for (Nanos t : times) sum += static_cast<double>(t);
    std::sort(times.begin(), times.end());
    fmt::print("{}: median {:.3f}, mean {:.3f} microseconds a step\n", what,
               1e-3 * static_cast<double>(times[times.size() / 2]),
               1e-3 * sum / static_cast<double>(times.size()));
  };
  report("beliefs: push what a step took, take the latest model", learning);
  report("beliefs: the work of all slices", adding);
  measure_lengths("online", 0);
  for (size_t width : {576, 4096}) measure_lengths("hidden", width);
}

int run(const Options& o) {
  fmt::print("{} sequences of {} tokens decode; microseconds of the engine's thread per step\n", o.seqs,
             o.tokens);
  fmt::print("{:<16} {:>8} {:>10} {:>10} {:>14} {:>12} {:>10}{}\n", "policy", "groups", "plan", "with check",
             "commit", "plan+commit", "publish", o.map ? fmt::format(" {:>8}", "frame") : "");
  const auto report = [&](const std::string& policy, bool scarce) {
    for (uint32_t layers_per_group : {32u, 4u, 1u}) {
      const Phases checked = measure(o, policy, layers_per_group, true, scarce);
      const Phases plain = measure(o, policy, layers_per_group, false, scarce);
      fmt::print("{:<16} {:>8} {:>10.0f} {:>10.0f} {:>14.0f} {:>12.0f} {:>10.0f}", policy,
                 32 / layers_per_group, plain.plan, checked.plan, plain.commit, plain.plan + plain.commit,
                 plain.publish);
      if (o.map) fmt::print(" {:>8.0f}", plain.frame);
      fmt::print("{}\n", scarce ? fmt::format("  with a host, {} away", plain.away) : "");
      std::fflush(stdout);
    }
  };
  if (o.policy.find(':') != std::string::npos) report(o.policy, true);  // with settings of its own
  for (const std::string& policy : policy_names()) {
    if (policy_traits(policy).alias || (!o.policy.empty() && policy != o.policy)) continue;
    report(policy, false);
    if (policy != "layerkv") continue;
    report(policy, true);
    report(policy + ":urgent=1", true);
  }
  measure_beliefs(o);
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
  app.add_option("--windows", options.windows, "windows of these steps, of which the quickest counts")
      ->check(CLI::PositiveNumber);
  app.add_option("--policy", options.policy, "only this one");
  app.add_option("--device-share", options.device_share,
                 "share of the prompts that the device has room for where there is a host tier")
      ->check(CLI::Range(0.1, 1.0));
  app.add_option("--clock", options.clock, "wall or cpu: of the engine's thread")
      ->check(CLI::IsMember({"wall", "cpu"}));
  app.add_flag(
      "--map", options.map,
      "take a frame of the cache map at the end of each step; the column frame, which no phase includes, is "
      "what that took");
  app.add_option("--ring-blocks", options.ring_blocks, "blocks of which the stage ring holds one layer");
  CLI11_PARSE(app, argc, argv);
  return kvasir::bench::run(options);
}
