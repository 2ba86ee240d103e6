// What a policy takes to plan a step, by the number of requests: all of them decoding, a quarter of them kept
// as X if the policy does that; or all but a few waiting, for memory or with enough of it; and the choice of
// a batch alone.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "contract/policy.h"
#include "sched/mechanisms/hybrid_knapsack.h"
#include "sched/registry.h"

namespace kvasir {
namespace {

constexpr Nanos kNow = 1000 * kNanosPerSecond;
constexpr uint32_t kBlock = 16;

// OPT-13B's shape, with X of half the size of K and V, and room for `free_blocks` more blocks.
View view_of(uint32_t blocks, uint32_t free_blocks) {
  View view;
  view.now = kNow;
  view.next_step = StepId{1};
  view.geometry = {kBlock, 40, 40, 10'240, 10'240};
  view.device.per_slab = {1, 2, 0};
  view.device.slabs = blocks;
  view.device.spare_slabs = free_blocks;
  view.stage_blocks = 128;
  view.limits.max_num_batched_tokens = 2048;
  view.limits.max_num_seqs = 4096;
  view.costs.step_s = 0.02;
  view.costs.prefill_row_s = 1e-4;
  view.costs.projected_token_s = 5e-7;
  return view;
}

SeqView request(uint64_t id, Random& random) {
  SeqView s;
  s.id = SeqId{id};
  s.slo = {.ttft_ms = 1000, .tbt_ms = 1000};
  s.prompt_tokens = s.known_tokens = static_cast<uint32_t>(random.between(10, 1000));
  s.max_total_tokens = 2048;
  s.arrival = kNow - static_cast<Nanos>(random.unit() * 1.5 * kNanosPerSecond);
  s.device_groups = LayerSet::all(1);
  return s;
}

SeqView decoding(uint64_t id, Random& random) {
  SeqView s = request(id, random);
  s.known_tokens += 20;
  s.ready_tokens = s.known_tokens - 1;
  s.blocks = s.resident_blocks = (s.ready_tokens + kBlock - 1) / kBlock;
  s.cells[index_of(Form::kKv)][index_of(Tier::kDevice)] = s.blocks;
  s.own_cells = s.cells;
  s.first_token_time = s.arrival;
  s.last_token_time = kNow - static_cast<Nanos>(random.unit() * 0.1 * kNanosPerSecond);
  return s;
}

// With X of all its blocks, and K and V of the last one.
SeqView hidden(uint64_t id, Random& random) {
  SeqView s = decoding(id, random);
  for (auto* cells : {&s.cells, &s.own_cells}) {
    (*cells)[index_of(Form::kX)][index_of(Tier::kDevice)] = s.blocks;
    (*cells)[index_of(Form::kKv)][index_of(Tier::kDevice)] = 1;
  }
  s.resident_blocks = 1;
  s.device_groups = {};
  return s;
}

void plan(benchmark::State& state, const std::string& policy_name, const View& view) {
  const auto policy = make_policy(policy_name).value();
  for (auto _ : state) benchmark::DoNotOptimize(policy->plan(view));
}

// `range` requests, of which 24 run and the others wait.
void waiting(benchmark::State& state, const std::string& policy, uint32_t free_blocks) {
  Random random(3);
  View view = view_of(1000 + free_blocks, free_blocks);
  const auto n = static_cast<uint64_t>(state.range(0));
  for (uint64_t i = 0; i < 24; ++i) view.running.push_back(decoding(i + 1, random));
  for (uint64_t i = 24; i < n; ++i) view.waiting.push_back(request(i + 1, random));
  plan(state, policy, view);
}

void running(benchmark::State& state, const std::string& policy) {
  Random random(3);
  View view = view_of(200'000, 50'000);
  const bool keeps_x = policy_keeps_x(policy);
  for (uint64_t i = 0; i < static_cast<uint64_t>(state.range(0)); ++i) {
    view.running.push_back(keeps_x && i % 4 == 0 ? hidden(i + 1, random) : decoding(i + 1, random));
  }
  plan(state, policy, view);
}

void choose(benchmark::State& state) {
  Random random(3);
  std::vector<HybridCandidate> candidates;
  uint64_t bytes = 0;
  for (int64_t i = 0; i < state.range(0); ++i) {
    const auto kv = static_cast<uint64_t>(random.between(1, 60)) << 20;
    const double value = random.unit();
    candidates.push_back({value, 0.5 * value * random.unit(), kv, kv / 2});
    bytes += kv;
  }
  for (auto _ : state) benchmark::DoNotOptimize(choose_batch(candidates, bytes / 3));
}

#define KVASIR_COUNTS \
  Arg(50)->Arg(100)->Arg(200)->Arg(400)->Arg(800)->Arg(1600)->Unit(benchmark::kMicrosecond)
BENCHMARK(choose)->KVASIR_COUNTS;
BENCHMARK_CAPTURE(waiting, apt_serve, "apt-serve", 40)->KVASIR_COUNTS;
BENCHMARK_CAPTURE(waiting, apt_serve_ample, "apt-serve", 100'000)->KVASIR_COUNTS;
BENCHMARK_CAPTURE(waiting, apt_serve_s, "apt-serve-s", 40)->KVASIR_COUNTS;
BENCHMARK_CAPTURE(waiting, vllm, "vllm", 40)->KVASIR_COUNTS;
BENCHMARK_CAPTURE(running, apt_serve, "apt-serve")->KVASIR_COUNTS;
BENCHMARK_CAPTURE(running, apt_serve_s, "apt-serve-s")->KVASIR_COUNTS;
BENCHMARK_CAPTURE(running, vllm, "vllm")->KVASIR_COUNTS;

}  // namespace
}  // namespace kvasir

BENCHMARK_MAIN();
