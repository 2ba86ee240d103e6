// Histories of which a share is not kept on the device, dropped or staged, under every setting that says how.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "engine/torture.h"
#include "support/levels.h"

namespace kvasir::test {
namespace {

void expect_right_partial(const TortureConfig& config, const TortureOutcome& out) {
  EXPECT_EQ(out.wrong, 0u) << out.first_wrong;
  EXPECT_EQ(out.used_blocks_left, 0u);
  EXPECT_EQ(out.host_bytes_left, 0u);
  EXPECT_EQ(out.transfers_left, 0u);
  EXPECT_EQ(out.standstills, 0u);
  EXPECT_EQ(out.integrity, "");
  EXPECT_EQ(out.complete + out.aborted + out.failed, config.requests);
}

TortureConfig partial_config(const std::string& policy, int depth, uint32_t layers_per_group, bool host) {
  TortureConfig config;
  config.policy = policy;
  config.depth = depth;
  config.layers = 6;
  config.layers_per_group = layers_per_group;
  config.total_blocks = 40;
  config.host_blocks = host ? 60 : 0;
  config.stage_blocks = 60;
  config.requests = scaled(100);
  config.most_steps = 1000 * config.requests;
  config.seed = 31 + layers_per_group + 100 * static_cast<uint64_t>(depth);
  if (host) {
    config.late_waits = 0.02;
    config.failing_transfers = 0.01;
    config.max_decode_stall = 20'000;
  }
  return config;
}

using ForcedCase = std::tuple<std::string, int, uint32_t, bool>;
class ForcedRatioTorture : public testing::TestWithParam<ForcedCase> {};

TEST_P(ForcedRatioTorture, EveryOutputIsWhatItsTokensSay) {
  const auto& [settings, depth, layers_per_group, host] = GetParam();
  TortureConfig config = partial_config("ellm:" + settings, depth, layers_per_group, host);
  config.prefix_caching = depth == 1;
  const TortureOutcome out = torture(config);
  expect_right_partial(config, out);
  std::printf("%llu decode steps: again %llu, staged %llu\n",
              static_cast<unsigned long long>(out.counts.decode_steps),
              static_cast<unsigned long long>(out.counts.again_decode_steps),
              static_cast<unsigned long long>(out.counts.staged_decode_steps));
  const bool all_staged = settings.find("again=0:") != std::string::npos;
  if (host ? !all_staged : true) {
    EXPECT_GT(out.counts.again_decode_steps, out.counts.decode_steps / 5);
  }
  if (host && settings.find("again=1:") == std::string::npos) {
    EXPECT_GT(out.counts.staged_decode_steps, out.counts.decode_steps / 5);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, ForcedRatioTorture,
    testing::ValuesIn(shapes<std::string, int, uint32_t, bool>(
        6,
        {"ratio=0.5:again=0:mix=tokens", "ratio=0.5:again=0.5:mix=tokens", "ratio=0.5:again=0.5:mix=layers",
         "ratio=0.9:again=1:mix=tokens", "ratio=0.9:again=0.3:mix=layers:overlap=off:fusion=off"},
        {1, 2}, {1, 4}, {false, true})),
    [](const auto& c) {
      return "n" + std::to_string(c.index) + "_depth" + std::to_string(std::get<1>(c.param)) + "_f" +
             std::to_string(std::get<2>(c.param)) + (std::get<3>(c.param) ? "_host" : "_alone");
    });

// Chosen by belief: a step that takes long whatever it does, on a device that holds two or three requests,
// makes larger batches pay, and where that ends histories come back.
using ChosenCase = std::tuple<std::string, int, bool>;
class ChosenRatioTorture : public testing::TestWithParam<ChosenCase> {};

TEST_P(ChosenRatioTorture, EveryOutputIsWhatItsTokensSay) {
  const auto& [settings, depth, host] = GetParam();
  TortureConfig config = partial_config("ellm" + settings, depth, 2, host);
  config.total_blocks = 26;
  config.costs.step_s = 0.1;
  config.costs.prefill_row_s = config.costs.decode_row_s = 1e-6;
  config.costs.pair_s = config.costs.context_s = 1e-9;
  if (host) {
    for (auto& row : config.costs.links) {
      for (LinkCost& link : row) link = {1e-6, 1e-9};
    }
  }
  const TortureOutcome out = torture(config);
  expect_right_partial(config, out);
  std::printf("%llu decode steps: again %llu, staged %llu; %llu preemptions\n",
              static_cast<unsigned long long>(out.counts.decode_steps),
              static_cast<unsigned long long>(out.counts.again_decode_steps),
              static_cast<unsigned long long>(out.counts.staged_decode_steps),
              static_cast<unsigned long long>(out.preemptions));
  // Measured steps, which take a microsecond a row whatever is believed, may end it.
  EXPECT_GT(out.counts.again_decode_steps + out.counts.staged_decode_steps, 10u);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ChosenRatioTorture,
                         testing::ValuesIn(shapes<std::string, int, bool>(
                             7, {"", ":divide=bubble", ":mix=layers", ":solver=slsqp", ":measured=off"},
                             {1, 2}, {false, true})),
                         [](const auto& c) {
                           return "n" + std::to_string(c.index) + "_depth" +
                                  std::to_string(std::get<1>(c.param)) +
                                  (std::get<2>(c.param) ? "_host" : "_alone");
                         });

}  // namespace
}  // namespace kvasir::test
