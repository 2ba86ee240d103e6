// Torture: whatever the schedule, every output is what its tokens alone say; and with each seeded fault, some
// output is not.
#include "engine/torture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/mutant.h"
#include "support/levels.h"
#include "support/policies.h"

namespace kvasir::test {
namespace {

void expect_right(const TortureConfig& config, const TortureOutcome& out) {
  EXPECT_EQ(out.wrong, 0u) << out.first_wrong;
  EXPECT_EQ(out.used_blocks_left, 0u);
  EXPECT_EQ(out.host_bytes_left, 0u);
  EXPECT_EQ(out.transfers_left, 0u);
  EXPECT_EQ(out.standstills, 0u);
  EXPECT_EQ(out.integrity, "");
  EXPECT_EQ(out.complete + out.aborted + out.failed, config.requests);
  if (!config.prefix_caching) {
    EXPECT_EQ(out.hit_tokens, 0u);
  }
}

using Case = std::tuple<std::string, int, uint32_t, uint32_t, bool>;
class Torture : public testing::TestWithParam<Case> {};

TEST_P(Torture, EveryOutputIsWhatItsTokensSay) {
  TortureConfig config;
  std::tie(config.policy, config.depth, config.groups, config.block_tokens, config.prefix_caching) =
      GetParam();
  config.total_blocks = config.block_tokens == 16 ? 26 : config.block_tokens == 32 ? 14 : 8;
  config.requests = scaled(250);
  config.seed = 1000 * config.block_tokens + 10 * config.groups + static_cast<uint64_t>(config.depth);
  const TortureOutcome out = torture(config);
  expect_right(config, out);
  if (config.policy == "orca") {
    EXPECT_EQ(out.preemptions, 0u) << "it reserves all that a request may become";
  } else if (!std::set<std::string>{"cacheopt", "fastgen", "rlp", "s3"}.contains(config.policy)) {
    // Those wait for room, or ask for more than most need.
    EXPECT_GT(out.preemptions, 0u);
  }
  EXPECT_GT(out.aborted, 0u);
  if (config.prefix_caching) {
    EXPECT_GT(out.hit_tokens, 0u);
  }
  if (config.policy == "random-promises") {
    for (uint64_t count : out.counts.promises) EXPECT_GT(count, 10u);
    EXPECT_GT(out.counts.claims_called, 0u);
    EXPECT_GT(out.counts.loans_due, 0u);
  }
}

std::string name_of(const testing::TestParamInfo<Case>& c) {
  std::string policy = std::get<0>(c.param);
  std::replace(policy.begin(), policy.end(), '-', '_');
  return policy + "_depth" + std::to_string(std::get<1>(c.param)) + "_groups" +
         std::to_string(std::get<2>(c.param)) + "_block" + std::to_string(std::get<3>(c.param)) +
         (std::get<4>(c.param) ? "_prefix" : "_plain");
}

// `vllm-swap` has its tiers below: without any it would be `vllm`.
std::vector<std::string> policies_of_one_tier() {
  std::vector<std::string> out = every_policy({"random", "random-promises"});
  std::erase(out, "vllm-swap");
  return out;
}

INSTANTIATE_TEST_SUITE_P(Shapes, Torture,
                         testing::ValuesIn(shapes<std::string, int, uint32_t, uint32_t, bool>(
                             1, policies_of_one_tier(), {1, 2}, {1, 3}, {16, 32, 64}, {false, true})),
                         name_of);

// A device tier of 128 tokens, which most requests outgrow, a host tier of three times that, and a ring.
TortureConfig tiers(std::string policy, int depth, uint32_t layers_per_group) {
  TortureConfig config;
  config.policy = std::move(policy);
  config.depth = depth;
  config.layers_per_group = layers_per_group;
  config.layers = 6;
  config.total_blocks = 8;
  config.host_blocks = 60;
  config.stage_blocks = 40;
  config.late_waits = 0.02;
  config.failing_transfers = 0.01;
  config.max_decode_stall = 20'000;  // of the clock, which a row moves by 1,000
  config.seed = 77 + layers_per_group;
  return config;
}

using TierCase = std::tuple<std::string, int, uint32_t>;
class TierTorture : public testing::TestWithParam<TierCase> {};

TEST_P(TierTorture, EveryOutputIsWhatItsTokensSay) {
  const auto& [policy, depth, layers_per_group] = GetParam();
  TortureConfig config = tiers(policy, depth, layers_per_group);
  config.requests = scaled(120);
  const TortureOutcome out = torture(config);
  expect_right(config, out);
  std::printf("%llu steps, %llu staged, %llu partial, %llu swapped, %llu deferred, %llu transfers\n",
              static_cast<unsigned long long>(out.steps), static_cast<unsigned long long>(out.staged_steps),
              static_cast<unsigned long long>(out.partial_steps),
              static_cast<unsigned long long>(out.swapped), static_cast<unsigned long long>(out.deferred),
              static_cast<unsigned long long>(out.transfers));
  EXPECT_GT(out.staged_steps, 0u);
  EXPECT_GT(out.deferred, 0u);
  if (policy == "hcache" || policy == "vllm-swap" || policy == "random") {
    EXPECT_GT(out.swapped, 0u);
  }
  if ((policy == "random" || policy == "layerkv") && layers_per_group < 6) {
    EXPECT_GT(out.partial_steps, out.steps / (policy == "random" ? 20 : 40));
  }
}

std::string tier_name_of(const testing::TestParamInfo<TierCase>& c) {
  std::string policy = std::get<0>(c.param);
  std::replace(policy.begin(), policy.end(), '-', '_');
  return policy + "_depth" + std::to_string(std::get<1>(c.param)) + "_f" +
         std::to_string(std::get<2>(c.param));
}

INSTANTIATE_TEST_SUITE_P(Shapes, TierTorture,
                         testing::ValuesIn(shapes<std::string, int, uint32_t>(
                             2, every_policy({"random", "random-promises"}), {1, 2}, {1, 2, 4, 6})),
                         tier_name_of);

// Every form on every tier, in any mixture, down to nothing: pieces of X of an odd size.
TortureConfig forms(int depth, uint32_t layers_per_group, uint64_t seed) {
  TortureConfig config = tiers("random-forms", depth, layers_per_group);
  config.total_blocks = 26;
  config.disk_blocks = 80;
  config.x_bytes = 12;
  config.scratch_tokens = 600;
  config.seed = seed;
  return config;
}

using FormCase = std::tuple<int, uint32_t, bool>;
class FormTorture : public testing::TestWithParam<FormCase> {};

TEST_P(FormTorture, EveryOutputIsWhatItsTokensSay) {
  const auto& [depth, layers_per_group, faults] = GetParam();
  TortureConfig config = forms(depth, layers_per_group, 5);
  config.requests = scaled(120);
  if (!faults) config.late_waits = config.failing_transfers = 0;
  if (faults) config.failing_transfers = 0.03;
  const TortureOutcome out = torture(config);
  expect_right(config, out);
  const PlanCounts& c = out.counts;
  const auto count = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  std::printf("%llu steps, %llu with decodes: X %llu, disk %llu, again %llu, staged %llu; %llu deferred\n",
              count(out.steps), count(c.decode_steps), count(c.x_decode_steps), count(c.disk_decode_steps),
              count(c.again_decode_steps), count(c.staged_decode_steps), count(out.deferred));
  EXPECT_EQ(out.disk_bytes_left, 0u);
  EXPECT_GT(c.x_decode_steps, c.decode_steps / 5);
  EXPECT_GT(c.disk_decode_steps, c.decode_steps / 5);
  EXPECT_GT(c.again_decode_steps, c.decode_steps / 5);
}

INSTANTIATE_TEST_SUITE_P(Shapes, FormTorture,
                         testing::ValuesIn(shapes<int, uint32_t, bool>(3, {1, 2}, {1, 2, 4, 6},
                                                                       {false, true})),
                         [](const auto& c) {
                           return "depth" + std::to_string(std::get<0>(c.param)) + "_f" +
                                  std::to_string(std::get<1>(c.param)) +
                                  (std::get<2>(c.param) ? "_faults" : "_calm");
                         });

TortureConfig hidden(const std::string& policy, int depth, uint32_t layers_per_group, bool costly) {
  TortureConfig config;
  config.policy = policy;
  config.depth = depth;
  config.layers_per_group = layers_per_group;
  config.layers = 6;
  config.x_bytes = 4;  // a quarter of K and V
  config.stage_blocks = 40;
  config.max_num_batched_tokens = 400;
  config.requests = scaled(150);
  config.failing_steps = 0.01;
  config.seed = 31 + layers_per_group;
  if (costly) {  // in the microseconds of the clock: a sequence kept as X is left out of some steps
    config.costs.prefill_row_s = 1e-6;
    config.costs.projected_token_s = 0.01e-6;
    config.slo = {.ttft_ms = 1, .tbt_ms = 2};
  }
  return config;
}

// Histories kept as X where there is no tier but the device, upgraded, preempted and prefilled again.
using HiddenCase = std::tuple<std::string, int, uint32_t, bool>;  // costly
class HiddenTorture : public testing::TestWithParam<HiddenCase> {};

TEST_P(HiddenTorture, EveryOutputIsWhatItsTokensSay) {
  const auto& [policy, depth, layers_per_group, costly] = GetParam();
  const TortureConfig config = hidden(policy + ":hidden-share=1", depth, layers_per_group, costly);
  const TortureOutcome out = torture(config);
  expect_right(config, out);
  const PlanCounts& c = out.counts;
  std::printf("%llu steps, %llu with decodes, of those %llu over X; %llu preemptions\n",
              static_cast<unsigned long long>(out.steps), static_cast<unsigned long long>(c.decode_steps),
              static_cast<unsigned long long>(c.x_decode_steps),
              static_cast<unsigned long long>(out.preemptions));
  EXPECT_GT(c.x_decode_steps, c.decode_steps / (costly ? 50 : 5));
  EXPECT_GT(out.preemptions, 0u);
}

INSTANTIATE_TEST_SUITE_P(Shapes, HiddenTorture,
                         testing::ValuesIn(shapes<std::string, int, uint32_t, bool>(
                             4, {"apt-serve", "apt-serve-s"}, {1, 2}, {1, 4, 6}, {false, true})),
                         [](const auto& c) {
                           return (std::get<0>(c.param) == "apt-serve" ? std::string("Types_depth")
                                                                       : std::string("Chunks_depth")) +
                                  std::to_string(std::get<1>(c.param)) + "_f" +
                                  std::to_string(std::get<2>(c.param)) +
                                  (std::get<3>(c.param) ? "_costly" : "_free");
                         });

// The same with requests that had K and V and become X: those that come back from a preemption, those that
// the choice for a step gives X, and those that make room for the queue. With costs the paper's price of it,
// which lacks the recomputation.
using SwitchCase = std::tuple<std::string, int, uint32_t, bool>;  // costly
class SwitchTorture : public testing::TestWithParam<SwitchCase> {};

TEST_P(SwitchTorture, EveryOutputIsWhatItsTokensSay) {
  const auto& [policy, depth, layers_per_group, costly] = GetParam();
  const std::string price = costly ? ":switch-cost=off" : "";
  TortureConfig config = hidden(policy + ":hidden-share=1" + price, depth, layers_per_group, costly);
  config.prefix_caching = layers_per_group == 4;
  const TortureOutcome out = torture(config);
  expect_right(config, out);
  const PlanCounts& c = out.counts;
  std::printf("%llu steps, %llu preemptions, %llu became X, %llu came back as X\n",
              static_cast<unsigned long long>(out.steps), static_cast<unsigned long long>(out.preemptions),
              static_cast<unsigned long long>(c.switches_to_x),
              static_cast<unsigned long long>(c.returned_as_x));
  EXPECT_GT(c.returned_as_x, 0u);
  // With costs a request that runs has not waited for long enough to be worth projecting.
  const bool runs = policy.ends_with("running") && !costly;
  if (runs || policy.ends_with("queue")) {
    EXPECT_GT(c.switches_to_x, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, SwitchTorture,
                         testing::ValuesIn(shapes<std::string, int, uint32_t, bool>(
                             6,
                             {"apt-serve:to-x=returning", "apt-serve:to-x=running", "apt-serve:to-x=queue",
                              "apt-serve-s:to-x=running"},
                             {1, 2}, {1, 4}, {false, true})),
                         [](const auto& c) {
                           const std::string& policy = std::get<0>(c.param);
                           return (policy.starts_with("apt-serve-s") ? "Chunks_" : "Types_") +
                                  policy.substr(policy.find('=') + 1) + "_depth" +
                                  std::to_string(std::get<1>(c.param)) + "_f" +
                                  std::to_string(std::get<2>(c.param)) +
                                  (std::get<3>(c.param) ? "_costly" : "_free");
                         });

// The paper's Section 5 alone: what is not chosen is preempted, and every change of the form is a prefill.
using Section5Case = std::tuple<int, uint32_t, bool>;  // costly
class Section5Torture : public testing::TestWithParam<Section5Case> {};

TEST_P(Section5Torture, EveryOutputIsWhatItsTokensSay) {
  const auto& [depth, layers_per_group, costly] = GetParam();
  TortureConfig config = hidden("apt-serve:rules=paper", depth, layers_per_group, costly);
  config.prefix_caching = layers_per_group == 4;
  const TortureOutcome out = torture(config);
  expect_right(config, out);
  const PlanCounts& c = out.counts;
  std::printf("%llu steps, %llu preemptions, %llu became X, %llu became K and V, %llu decodes over X\n",
              static_cast<unsigned long long>(out.steps), static_cast<unsigned long long>(out.preemptions),
              static_cast<unsigned long long>(c.switches_to_x),
              static_cast<unsigned long long>(c.switches_to_kv),
              static_cast<unsigned long long>(c.x_decode_steps));
  EXPECT_GT(out.preemptions, 0u);
  EXPECT_GT(c.switches_to_kv, 0u);
  if (!costly) {
    EXPECT_GT(c.switches_to_x, 0u);
    EXPECT_GT(c.x_decode_steps, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Section5Torture,
                         testing::ValuesIn(shapes<int, uint32_t, bool>(4, {1, 2}, {1, 4}, {false, true})),
                         [](const auto& c) {
                           return "depth" + std::to_string(std::get<0>(c.param)) + "_f" +
                                  std::to_string(std::get<1>(c.param)) +
                                  (std::get<2>(c.param) ? "_costly" : "_free");
                         });

// Histories that wait as X in some layers and as K and V in the others, and come back, on a link that is late
// and fails.
using RestoreCase = std::tuple<std::string, int, uint32_t, bool>;
class RestoreTorture : public testing::TestWithParam<RestoreCase> {};

TEST_P(RestoreTorture, EveryOutputIsWhatItsTokensSay) {
  const auto& [policy, depth, layers_per_group, faults] = GetParam();
  TortureConfig config = tiers(policy, depth, layers_per_group);
  config.total_blocks = 14;
  config.x_bytes = 8;  // half of K and V
  config.seed = 79;
  config.max_num_batched_tokens = 400;
  config.requests = scaled(150);
  config.prefix_caching = layers_per_group == 2;
  if (!faults) config.late_waits = config.failing_transfers = config.max_decode_stall = 0;
  if (faults) config.failing_steps = 0.01;
  const TortureOutcome out = torture(config);
  expect_right(config, out);
  std::printf("%llu steps, %llu preemptions, %llu swapped, %llu restored from X, %llu deferred\n",
              static_cast<unsigned long long>(out.steps), static_cast<unsigned long long>(out.preemptions),
              static_cast<unsigned long long>(out.swapped),
              static_cast<unsigned long long>(out.counts.x_restores),
              static_cast<unsigned long long>(out.deferred));
  // The others stream, have adopted a prefix, or have lost X of some block.
  EXPECT_GT(out.counts.x_restores, out.swapped / (config.prefix_caching ? 20 : 6));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RestoreTorture,
    testing::ValuesIn(shapes<std::string, int, uint32_t, bool>(5, {"hcache", "hcache:x-share=0.5"}, {1, 2},
                                                               {1, 2}, {false, true})),
    [](const auto& c) {
      return (std::get<0>(c.param) == "hcache" ? std::string("All_depth") : std::string("Half_depth")) +
             std::to_string(std::get<1>(c.param)) + "_f" + std::to_string(std::get<2>(c.param)) +
             (std::get<3>(c.param) ? "_faults" : "_calm");
    });

TEST(Torture, StepsThatFailEndOnlyTheirRequests) {
  for (const std::string& policy : every_policy({"ellm:ratio=0.5", "random"})) {
    SCOPED_TRACE(policy);
    for (int depth : {1, 2}) {
      TortureConfig config;
      config.policy = policy;
      config.depth = depth;
      config.failing_steps = 0.02;
      config.requests = scaled(200);
      const TortureOutcome out = torture(config);
      expect_right(config, out);
      EXPECT_GT(out.failed, 0u);
      EXPECT_GT(out.complete, 0u);
    }
  }
}

TEST(Torture, WithAmpleMemoryNothingIsPreempted) {
  for (const char* policy : {"vllm", "apt-serve", "apt-serve-s", "cacheopt", "distkv", "ellm", "sarathi",
                             "fastgen", "hcache", "layerkv", "orca"}) {
    TortureConfig config;
    config.policy = policy;
    config.total_blocks = 400;
    config.requests = scaled(80);
    const TortureOutcome out = torture(config);
    expect_right(config, out);
    EXPECT_EQ(out.preemptions, 0u);
  }
}

TEST(Torture, ReportsItsSpeed) {
  TortureConfig config;
  config.check = false;
  config.requests = scaled(1000);
  const TortureOutcome out = torture(config);
  expect_right(config, out);
  const double rate = static_cast<double>(out.steps) / out.seconds;
  RecordProperty("steps_per_second", std::to_string(rate));
  std::printf("%llu steps, %llu preemptions, %.0f steps a second\n",
              static_cast<unsigned long long>(out.steps), static_cast<unsigned long long>(out.preemptions),
              rate);
}

#if defined(KVASIR_MUTANTS)
// With a fault on, at least one output of these runs must be wrong; it must not crash.
uint64_t wrong_with(Mutant fault, int depth) {
  const ScopedMutant on(fault);
  uint64_t wrong = 0;
  for (const char* policy : {"vllm", "sarathi", "random"}) {
    TortureConfig config;
    config.policy = policy;
    config.depth = depth;
    config.check = false;
    config.requests = 400;
    config.cancels = 0.3;
    const TortureOutcome out = torture(config);
    std::printf("%s: %llu wrong of %u\n", policy, static_cast<unsigned long long>(out.wrong),
                config.requests);
    wrong += out.wrong;
  }
  return wrong;
}

TEST(TortureMutants, StaleFrameIsFound) {
  EXPECT_GT(wrong_with(Mutant::kStaleFrame, 1), 0u);
}
TEST(TortureMutants, FrameReusedEarlyIsFound) {
  EXPECT_GT(wrong_with(Mutant::kFrameReusedEarly, 2), 0u);
}
TEST(TortureMutants, PrefixWrongBlockIsFound) {
  EXPECT_GT(wrong_with(Mutant::kPrefixWrongBlock, 1), 0u);
}
TEST(TortureMutants, PrefixPartialBlockIsFound) {
  EXPECT_GT(wrong_with(Mutant::kPrefixPartialBlock, 1), 0u);
}
// The same over tiers. Without the fault the very same runs must be right.
uint64_t wrong_in_tiers(Mutant fault, int depth, std::string policy, uint32_t layers_per_group,
                        double late_waits = 0) {
  TortureConfig config = tiers(std::move(policy), depth, layers_per_group);
  config.check = false;
  config.requests = 120;
  config.late_waits = late_waits;
  config.failing_transfers = 0;
  expect_right(config, torture(config));
  const ScopedMutant on(fault);
  return torture(config).wrong;
}

TEST(TortureMutants, SkippedTransferWaitIsFound) {
  EXPECT_GT(wrong_in_tiers(Mutant::kSkippedTransferWait, 1, "sarathi", 1), 0u);
  EXPECT_GT(wrong_in_tiers(Mutant::kSkippedTransferWait, 2, "random", 2), 0u);
}
TEST(TortureMutants, StagedWrongLayerIsFound) {
  EXPECT_GT(wrong_in_tiers(Mutant::kStagedWrongLayer, 1, "vllm", 1), 0u);
  EXPECT_GT(wrong_in_tiers(Mutant::kStagedWrongLayer, 2, "random", 6), 0u);
}
TEST(TortureMutants, StagedWrongBlockIsFound) {
  EXPECT_GT(wrong_in_tiers(Mutant::kStagedWrongBlock, 1, "vllm", 1), 0u);
  EXPECT_GT(wrong_in_tiers(Mutant::kStagedWrongBlock, 2, "random", 2), 0u);
}
TEST(TortureMutants, RingReusedEarlyIsFound) {
  EXPECT_GT(wrong_in_tiers(Mutant::kRingReusedEarly, 1, "sarathi", 1), 0u);
  EXPECT_GT(wrong_in_tiers(Mutant::kRingReusedEarly, 2, "random", 2), 0u);
}
TEST(TortureMutants, DeferredSampledIsFound) {
  EXPECT_GT(wrong_in_tiers(Mutant::kDeferredSampled, 1, "sarathi", 1, 0.05), 0u);
  EXPECT_GT(wrong_in_tiers(Mutant::kDeferredSampled, 2, "random", 2, 0.05), 0u);
}
// A tail has to go to the host, come back, grow and go again.
TEST(TortureMutants, StaleCopyIsFound) {
  EXPECT_GT(wrong_in_tiers(Mutant::kStaleCopy, 1, "vllm-swap", 6), 0u);
  EXPECT_GT(wrong_in_tiers(Mutant::kStaleCopy, 2, "random", 1), 0u);
}
TEST(TortureMutants, TransferSourceFreedEarlyIsFound) {
  EXPECT_GT(wrong_in_tiers(Mutant::kTransferSourceFreedEarly, 1, "vllm-swap", 6), 0u);
  EXPECT_GT(wrong_in_tiers(Mutant::kTransferSourceFreedEarly, 1, "random", 1), 0u);
  EXPECT_GT(wrong_in_tiers(Mutant::kTransferSourceFreedEarly, 2, "random", 2), 0u);
}
// The same over every form.
TortureOutcome forms_with(Mutant fault, int depth, uint32_t layers_per_group, double late, double failing,
                          uint32_t requests = 120) {
  TortureConfig config = forms(depth, layers_per_group, 7);
  config.check = false;
  config.requests = requests;
  config.late_waits = late;
  config.failing_transfers = failing;
  const TortureOutcome right = torture(config);
  expect_right(config, right);
  EXPECT_LT(right.deferred, right.steps / 4);
  config.most_steps = 4 * right.steps;
  const ScopedMutant on(fault);
  return torture(config);
}
uint64_t wrong_in_forms(Mutant fault, int depth, uint32_t layers_per_group, double late = 0,
                        uint32_t requests = 120) {
  return forms_with(fault, depth, layers_per_group, late, /*failing=*/0, requests).wrong;
}

TEST(TortureMutants, DiskPlacesMixedIsFound) {
  EXPECT_GT(wrong_in_forms(Mutant::kDiskPlacesMixed, 1, 1), 0u);
  EXPECT_GT(wrong_in_forms(Mutant::kDiskPlacesMixed, 2, 6), 0u);
}
TEST(TortureMutants, ProjectedAtOriginIsFound) {
  EXPECT_GT(wrong_in_forms(Mutant::kProjectedAtOrigin, 1, 2), 0u);
}
TEST(TortureMutants, DeferredFillIsFound) {
  EXPECT_GT(wrong_in_forms(Mutant::kDeferredFill, 1, 2, 0.05), 0u);
}
TEST(TortureMutants, StaleXIsFound) {
  EXPECT_GT(wrong_in_forms(Mutant::kStaleX, 1, 2), 0u);
  EXPECT_GT(wrong_in_forms(Mutant::kStaleX, 2, 1, /*late=*/0, /*requests=*/500), 0u);
}
TEST(TortureMutants, CorruptKeptIsFound) {
  // The same piece is read in vain again and again.
  const TortureOutcome out = forms_with(Mutant::kCorruptKept, 1, 2, /*late=*/0, /*failing=*/0.03);
  EXPECT_GT(out.deferred, out.steps / 2);
}
TEST(TortureMutants, ResumeSkipsTokenIsFound) {
  EXPECT_GT(wrong_with(Mutant::kResumeSkipsToken, 1), 0u);
}
#endif

}  // namespace
}  // namespace kvasir::test
