// Torture of layers with windows: cells behind them are given up, and still every output is what its tokens
// say.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <string>
#include <tuple>

#include "base/mutant.h"
#include "engine/torture.h"
#include "support/levels.h"
#include "support/policies.h"

namespace kvasir::test {
namespace {

void expect_windows_right(const TortureConfig& config, const TortureOutcome& out) {
  EXPECT_EQ(out.wrong, 0u) << out.first_wrong;
  EXPECT_EQ(out.used_blocks_left, 0u);
  EXPECT_EQ(out.host_bytes_left, 0u);
  EXPECT_EQ(out.disk_bytes_left, 0u);
  EXPECT_EQ(out.transfers_left, 0u);
  EXPECT_EQ(out.standstills, 0u);
  EXPECT_EQ(out.integrity, "");
  EXPECT_EQ(out.complete + out.aborted + out.failed, config.requests);
}

// The windows cut blocks of 16 tokens.
TortureConfig windows_config(const std::string& policy, int depth, uint32_t window, bool tiers) {
  TortureConfig config;
  config.policy = policy;
  config.depth = depth;
  config.layers_per_group = 1;
  config.layers = 6;
  config.window = window;
  config.requests = scaled(100);
  config.seed = 500 + window + static_cast<uint64_t>(depth);
  if (tiers) {
    config.total_blocks = 8;
    config.host_blocks = 60;
    config.stage_blocks = 40;
    config.late_waits = 0.02;
    config.failing_transfers = 0.01;
    config.max_decode_stall = 20'000;
  }
  return config;
}

std::string window_name_of(std::string policy, int depth, uint32_t window) {
  std::replace_if(
      policy.begin(), policy.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return policy + "_depth" + std::to_string(depth) + "_window" + std::to_string(window);
}

using WindowCase = std::tuple<std::string, int, uint32_t, bool>;
class WindowTorture : public testing::TestWithParam<WindowCase> {};

TEST_P(WindowTorture, EveryOutputIsWhatItsTokensSay) {
  const auto& [policy, depth, window, tiers] = GetParam();
  TortureConfig config = windows_config(policy, depth, window, tiers);
  const TortureOutcome out = torture(config);
  expect_windows_right(config, out);
  EXPECT_GT(out.counts.dead_blocks, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, WindowTorture,
    testing::ValuesIn(shapes<std::string, int, uint32_t, bool>(8, every_policy({"random", "random-promises"}),
                                                               {1, 2}, {41, 96}, {false, true})),
    [](const auto& c) {
      return window_name_of(std::get<0>(c.param), std::get<1>(c.param), std::get<2>(c.param)) +
             (std::get<3>(c.param) ? "_tiers" : "");
    });

// Histories that are kept in part, or as X, in every form and on every tier.
using WindowFormCase = std::tuple<std::string, int, uint32_t>;
class WindowFormTorture : public testing::TestWithParam<WindowFormCase> {};

TEST_P(WindowFormTorture, EveryOutputIsWhatItsTokensSay) {
  const auto& [policy, depth, window] = GetParam();
  TortureConfig config = windows_config(policy, depth, window, /*tiers=*/true);
  config.total_blocks = 26;
  config.stage_blocks = 80;
  if (policy.starts_with("random")) {
    config.disk_blocks = 80;
    config.scratch_tokens = 900;
  }
  if (!policy.starts_with("ellm")) config.x_bytes = 8;
  const TortureOutcome out = torture(config);
  expect_windows_right(config, out);
  EXPECT_GT(out.counts.dead_blocks, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, WindowFormTorture,
    testing::ValuesIn(shapes<std::string, int, uint32_t>(
        9,
        {"random-forms", "hcache", "apt-serve:hidden-share=1", "ellm:ratio=0.5:again=0.5:mix=tokens",
         "ellm:ratio=0.9:again=1:mix=tokens", "ellm:ratio=0.5:again=0.5:mix=layers"},
        {1, 2}, {41, 96})),
    [](const auto& c) {
      return window_name_of(std::get<0>(c.param), std::get<1>(c.param), std::get<2>(c.param));
    });

#if defined(KVASIR_MUTANTS)
// A cell that was given up too early is missed: then the executor, or what lays out the step, stops.
TEST(WindowMutants, ADeadCellThatIsReadIsFound) {
  TortureConfig config = windows_config("sarathi", 1, 41, /*tiers=*/false);
  expect_windows_right(config, torture(config));
  config.check = false;
  const auto with = [&](Mutant fault) {
    const ScopedMutant on(fault);
    std::printf("%llu wrong", static_cast<unsigned long long>(torture(config).wrong));
  };
  EXPECT_DEATH(with(Mutant::kDeadTooEarly), "bytes at .* of");
  EXPECT_DEATH(with(Mutant::kWindowShorter), "bytes at .* of");
  EXPECT_DEATH(with(Mutant::kPrefixWindowShort), "a layer group is nowhere");
}
#endif

}  // namespace
}  // namespace kvasir::test
