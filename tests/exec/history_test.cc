// A history of several thousand tokens, of which the device tier holds a small part.
#include <gtest/gtest.h>

#include "exec/rig.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kHistory = 8192;

TEST(History, EightTimesTheDeviceTierGivesTheSameBits) {
  TinyLlamaShape shape = tiny_gqa();
  shape.context = 9216;
  const auto file = tiny_model(shape, ops::WeightType::kBf16);
  const std::vector<RigRequest> requests = {{random_tokens(5, kHistory), 8}};
  RigOptions options;
  options.limits.long_prefill_token_threshold = 512;
  options.blocks = 160;
  const RigRun unlimited = run(*file, options, requests);
  EXPECT_EQ(unlimited.staged_steps, 0u);
  ASSERT_EQ(unlimited.outputs[0].logits.size(), 8u);

  options.blocks = 1024 / options.block_tokens;
  options.host_blocks = 160;
  options.stage_blocks = 160;
  for (uint32_t layers_per_group : {1u, 3u}) {
    options.layers_per_group = layers_per_group;
    const RigRun run_in_tiers = run(*file, options, requests);
    EXPECT_EQ(differences(unlimited.outputs, run_in_tiers.outputs), 0);
    EXPECT_EQ(run_in_tiers.steps, unlimited.steps);
    // What the first chunk writes, and what the others read, goes through the ring.
    EXPECT_EQ(run_in_tiers.staged_steps, run_in_tiers.steps);
    EXPECT_EQ(run_in_tiers.deferred_rows, 0u);
  }
}

}  // namespace
}  // namespace kvasir::test
