// On a GPU, too, a request's logits and tokens do not depend on batch, policy, chunks, preemption, tiers,
// prefix reuse, layer groups or block size, and they are those of the GPU's reference decoder.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "exec/scenarios.h"
#include "support/levels.h"

namespace kvasir::test {
namespace {

constexpr FakeGpuPace kPaces[] = {FakeGpuPace::kEarly, FakeGpuPace::kLate, FakeGpuPace::kRandom};

// Threads are the CPU's.
std::vector<Scenario> gpu_scenarios() {
  std::vector<Scenario> out = scenarios();
  std::erase_if(out, [](const Scenario& s) { return s.kind == "threads"; });
  return out;
}

// The last of each: those of a kind grow more involved.
std::vector<Scenario> one_of_each_kind(const std::vector<Scenario>& all) {
  std::map<std::string, Scenario> by_kind;
  for (const Scenario& s : all) by_kind[s.kind] = s;
  std::vector<Scenario> out;
  for (auto& [kind, scenario] : by_kind) out.push_back(std::move(scenario));
  return out;
}

class GpuScenarios : public testing::TestWithParam<size_t> {};

// By default each kind of scenario comes up once, and each architecture has a fourth of the kinds.
TEST_P(GpuScenarios, GiveWhatTheReferenceGives) {
  const size_t mine = GetParam();
  Workload work = make_workload(ops::WeightType::kBf16, kScenarioArchitectures[mine]);
  RigOptions options;
  options.gpu = FakeGpuPace::kLate;
  const std::vector<RigOutput> expected = run_reference(*work.file, options, work.requests);
  const std::vector<Scenario> all = at_full_level() ? gpu_scenarios() : one_of_each_kind(gpu_scenarios());
  for (size_t i = 0; i < all.size(); ++i) {
    if (!at_full_level() && i % std::size(kScenarioArchitectures) != mine) continue;
    Scenario scenario = all[i];
    scenario.options.gpu = kPaces[i % std::size(kPaces)];
    scenario.options.gpu_depth = 2 - static_cast<int>(i / 4 % 2);
    scenario.options.gpu_thread = i / 8 % 2 == 0;
    scenario.options.gpu_graphs = (i / 4 + i) % 2 == 0;
    SCOPED_TRACE(scenario.name);
    EXPECT_EQ(differences(expected, run_scenario(work, scenario)), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Bits, GpuScenarios, testing::Range<size_t>(0, std::size(kScenarioArchitectures)),
                         [](const auto& c) { return std::string(kScenarioArchitectures[c.param]); });

TEST(GpuBits, EveryArchitectureMatchesTheReference) {
  const std::vector<RigRequest> requests = {{random_tokens(1, 370), 4}, {random_tokens(2, 40), 8}};
  for (const TinyLlamaShape& shape : tiny_architectures()) {
    SCOPED_TRACE(shape.architecture);
    const auto file = tiny_model(shape, ops::WeightType::kQ8_0);
    RigOptions options;
    options.gpu = FakeGpuPace::kRandom;
    options.limits.long_prefill_token_threshold = 29;
    const auto expected = run_reference(*file, options, requests);
    for (const int depth : {1, 2}) {
      options.gpu_depth = depth;
      options.gpu_graphs = true;
      const RigRun ran = run(*file, options, requests);
      EXPECT_EQ(differences(expected, ran.outputs), 0) << "chunks of 29";
      EXPECT_EQ(ran.graphs, ran.steps);
    }
    options.gpu_graphs = false;
    options.limits.long_prefill_token_threshold = 200;
    options.policy = "random";
    options.layers_per_group = 1;
    options.blocks = 9;
    options.host_blocks = 40;
    options.stage_blocks = 40;
    EXPECT_EQ(differences(expected, run(*file, options, requests).outputs), 0) << "random plans";
  }
}

// Temperature, top_k and top_p are the device's, rules and other cuts the sampler's.
TEST(GpuBits, RulesOfLogitsGiveTheSameInEveryScenario) {
  Workload work = make_workload(ops::WeightType::kF32);
  RigOptions options;
  options.gpu = FakeGpuPace::kRandom;
  const std::vector<RigOutput> plain = run_reference(*work.file, options, work.requests);
  add_rules(work);
  const std::vector<RigOutput> expected = run_reference(*work.file, options, work.requests);
  EXPECT_GT(differences(plain, expected), 25) << "the rules have no effect";
  const std::set<std::string> names = {"among 32, sarathi", "preemption and prefix reuse"};
  size_t ran = 0;
  for (Scenario scenario : scenarios()) {
    if (!names.contains(scenario.name)) continue;
    ++ran;
    scenario.options.gpu = FakeGpuPace::kRandom;
    scenario.options.gpu_depth = static_cast<int>(ran);
    scenario.options.gpu_graphs = ran == 2;
    EXPECT_EQ(differences(expected, run_scenario(work, scenario)), 0) << scenario.name;
  }
  EXPECT_EQ(ran, names.size());
}

TEST(GpuBits, SampledTokensDoNotDependOnTheBatch) {
  const auto file = tiny_model(tiny_gqa(), ops::WeightType::kQ8_0);
  RigOptions options;
  options.gpu = FakeGpuPace::kLate;
  options.gpu_thread = true;
  std::vector<RigRequest> requests;
  for (uint64_t i = 0; i < 12; ++i) {
    SamplingParams sampling;
    sampling.temperature = 0.5f + 0.1f * static_cast<float>(i);
    sampling.top_p = i % 3 == 0 ? 0.9f : 1.0f;
    sampling.top_k = i % 4 == 0 ? 20 : 0;
    sampling.seed = 100 + i;
    requests.push_back({random_tokens(i, 10 + i), 20, sampling, i / 3});
  }
  const std::vector<RigOutput> expected = run_reference(*file, options, requests);
  for (const bool graphs : {false, true}) {
    options.gpu_graphs = graphs;
    EXPECT_EQ(differences(expected, run(*file, options, requests).outputs), 0) << graphs;
  }
  for (RigRequest& r : requests) r.sampling.seed += 1;
  EXPECT_GT(differences(expected, run(*file, options, requests).outputs), 6) << "the seed has no effect";
}

}  // namespace
}  // namespace kvasir::test
