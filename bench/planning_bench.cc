// What a policy takes to plan a step, by the number of requests: all of them decoding, a quarter of them kept
// as X if the policy does that; or all but a few waiting, for memory or with enough of it; and the choice of
// a batch alone. And where room is promised by predictions: the same, and with many that must run at once.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "contract/policy.h"
#include "sched/mechanisms/hybrid_knapsack.h"
#include "sched/policy_settings.h"
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
  view.device.per_slab = {1, 2};
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
  const bool keeps_x = policy_traits(policy).keeps_x;
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

// ---------------------------------------------------------------- promises by predictions

// Of a Laplace distribution of 58 tokens around the point.
std::vector<LengthClass> laplace_classes() {
  std::vector<LengthClass> classes(8);
  for (uint32_t i = 0; i < classes.size(); ++i) {
    LengthClass& c = classes[i];
    c.low = 64 * i;
    c.high = 64 * (i + 1);
    c.finished = 1000;
    for (size_t k = 0; k < c.residuals.size(); ++k) {
      const double p = LengthClass::kQuantiles[k];
      c.residuals[k] = static_cast<float>(p < 0.5 ? 58 * std::log(2 * p) : -58 * std::log(2 * (1 - p)));
    }
  }
  return classes;
}

void predict(SeqView& s, Random& random) {
  const auto tokens = static_cast<uint32_t>(random.between(1, 500));
  s.predicted = {tokens, static_cast<uint8_t>(tokens / 64), static_cast<Deviation>(random.between(-1, 1))};
}

enum class Running : uint8_t { kAll, kHalf, kFew };  // the others wait

struct Crowd {
  const char* name;
  Running running;
  uint32_t free_blocks;        // beside those that are promised
  uint64_t critical_each = 0;  // of those that run; if it is not 0, all that wait are critical, too

  uint64_t runs(uint64_t requests) const {
    return running == Running::kAll ? requests : running == Running::kHalf ? requests / 2 : 24;
  }
};
constexpr uint32_t kAmple = 100'000, kShort = 40;
constexpr std::array kCrowds = {
    Crowd{"running_ample", Running::kAll, kAmple}, Crowd{"running_short", Running::kAll, kShort},
    Crowd{"waiting_ample", Running::kFew, kAmple}, Crowd{"waiting_short", Running::kFew, kShort},
    Crowd{"critical", Running::kHalf, kShort, 4},  Crowd{"all_critical", Running::kHalf, kShort, 1},
};

// Within a step of being late.
Nanos nearly_late(Random& random) {
  return kNow - from_seconds(0.96 + 0.03 * random.unit());
}

// Decodes, a sixteenth of all at the end of a block. Half have nothing left of what they were promised;
// a critical one has not, and is at the end of a block.
SeqView promised_decode(uint64_t id, bool critical, Random& random) {
  SeqView s = decoding(id, random);
  predict(s, random);
  if (critical) {
    s.known_tokens = s.blocks * kBlock + 1;
    s.ready_tokens = s.known_tokens - 1;
    s.last_token_time = nearly_late(random);
  } else if (id % 2 == 0) {
    s.promised_cells[0] = static_cast<uint32_t>(random.between(1, 30));
  }
  return s;
}

// Of every eight that run one is the guest of another, and one waits for what another releases.
std::vector<Claim> claims_among(const std::vector<SeqView>& running) {
  std::vector<Claim> claims;
  for (size_t i = 0; i + 3 < running.size(); i += 8) {
    claims.push_back({running[i].id, running[i + 1].id, 4, running[i + 1].known_tokens + 100});
    claims.push_back({running[i + 2].id, running[i + 3].id, 4});
  }
  return claims;
}

View view_of(const Crowd& crowd, uint64_t requests) {
  Random random(3);
  View view = view_of(0, 0);
  view.limits.max_num_seqs = std::max(view.limits.max_num_seqs, static_cast<uint32_t>(requests));
  uint32_t held = 0;
  while (view.running.size() < crowd.runs(requests)) {
    const uint64_t i = view.running.size();
    const bool critical = crowd.critical_each > 0 && i % crowd.critical_each == 0;
    const SeqView& s = view.running.emplace_back(promised_decode(i + 1, critical, random));
    held += s.blocks;
    view.device.promised[0] += s.promised_cells[0];
  }
  for (uint64_t id = view.running.size() + 1; id <= requests; ++id) {
    SeqView& s = view.waiting.emplace_back(request(id, random));
    predict(s, random);
    if (crowd.critical_each > 0) s.arrival = nearly_late(random);
  }
  view.device.spare_slabs = view.device.promised[0] + crowd.free_blocks;
  view.device.slabs = held + view.device.spare_slabs;
  view.claims = claims_among(view.running);
  view.length_classes = laplace_classes();
  view.host.per_slab = {1, 2};
  view.host.slabs = view.host.spare_slabs = 100'000;
  for (const auto& [from, to] : {std::pair{Tier::kDevice, Tier::kHost}, {Tier::kHost, Tier::kDevice}}) {
    view.costs.links[index_of(from)][index_of(to)] = {1e-5, 4e-11};
  }
  return view;
}

void plan_crowd(benchmark::State& state, const std::string& policy_name, const Crowd& crowd) {
  const View view = view_of(crowd, static_cast<uint64_t>(state.range(0)));
  const auto policy = make_policy(policy_name).value();
  // The longest step that it has seen took 50 ms.
  const bool reads_steps = policy_base_name(policy_name) == "cacheopt";
  if (reads_steps && !policy->restore_state("0 0 0 0 0 0; 0 50000000 0 1").ok()) std::abort();
  for (auto _ : state) benchmark::DoNotOptimize(policy->plan(view));
}

auto* register_crowd(const Crowd& crowd, const std::string& policy) {
  const std::string name = fmt::format("{}/{}", crowd.name, policy);
  const auto run = [crowd, policy](benchmark::State& state) { plan_crowd(state, policy, crowd); };
  return benchmark::RegisterBenchmark(name.c_str(), run)->Unit(benchmark::kMicrosecond);
}

void register_crowds() {
  for (const Crowd& crowd : kCrowds) {
    for (const char* policy : {"sarathi", "rlp", "s3", "cacheopt", "ellm", "hcache", "auto"}) {
      register_crowd(crowd, policy)->Arg(50)->Arg(100)->Arg(200)->Arg(400)->Arg(800)->Arg(1600);
    }
    // How the time grows.
    for (const char* policy : {"sarathi", "auto"}) register_crowd(crowd, policy)->Arg(4000)->Arg(16'000);
    // Without one component each; and to the letter of the paper.
    for (const char* settings :
         {"padding=share", "select=fcfs", "proactive=0", "reserve=0", "victim=fcfs", "preempt=recompute",
          "embed=off", "embed=always:preempt-for=all:late=first"}) {
      register_crowd(crowd, fmt::format("cacheopt:{}", settings))->Arg(1600);
    }
  }
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

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  kvasir::register_crowds();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
