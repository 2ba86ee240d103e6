// Histories kept as X because memory is short, projected for each token, and made K and V again where there
// is room: every answer is bit for bit that of an engine which has all keys and values on its device.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <utility>

#include "exec/tier_torture.h"

namespace kvasir::test {
namespace {

struct HiddenArithmetic {
  ops::WeightType weights;
  ops::KvType kv;
};

void torture(const TinyLlamaShape& shape, const HiddenArithmetic& arithmetic) {
  PlanCounts plans;
  uint64_t steps = 0, preemptions = 0, cached = 0;
  for (uint64_t round = 0; round < 2 && !testing::Test::HasFailure(); ++round) {
    const TierTorture torture(shape, arithmetic.weights, arithmetic.kv, 24, 70 + round);
    for (const char* policy : {"apt-serve:hidden-share=1", "apt-serve-s:hidden-share=1"}) {
      for (uint32_t layers_per_group : {1u, 2u, 4u}) {
        if (layers_per_group > static_cast<uint32_t>(shape.layers)) continue;
        SCOPED_TRACE(std::string(policy) + ", groups of " + std::to_string(layers_per_group) + ", round " +
                     std::to_string(round));
        RigOptions options = torture.hidden(layers_per_group);
        options.policy = policy;
        options.prefix_caching = layers_per_group != 2;
        const TierTortureOutcome out = torture.torture(options);
        EXPECT_EQ(out.wrong, 0u);
        plans += out.run.plans;
        steps += out.run.steps;
        preemptions += out.run.preemptions;
        for (const RigOutput& output : out.run.outputs) cached += output.cached_prompt_tokens;
      }
    }
  }
  const double share = static_cast<double>(plans.x_decode_steps) / static_cast<double>(plans.decode_steps);
  std::printf(
      "%llu steps, %llu with a decode: of those %.0f %% over X; %llu preemptions, %llu cached tokens\n",
      static_cast<unsigned long long>(steps), static_cast<unsigned long long>(plans.decode_steps),
      100 * share, static_cast<unsigned long long>(preemptions), static_cast<unsigned long long>(cached));
  EXPECT_GE(share, 0.2);
  EXPECT_GT(preemptions, 0u);
  EXPECT_GT(cached, 0u);
}

// They had K and V, and are computed again as X.
TEST(HiddenTorture, FromKeysAndValuesToX) {
  PlanCounts plans;
  uint64_t by_the_paper = 0;
  const TierTorture torture(torture_mha(), ops::WeightType::kQ4_1, ops::KvType::kBf16, 24, 75);
  for (const std::string policy :
       {"apt-serve:hidden-share=1:to-x=running", "apt-serve:hidden-share=1:to-x=queue",
        "apt-serve-s:hidden-share=1:to-x=running", "apt-serve:rules=paper"}) {
    for (uint32_t layers_per_group : {1u, 2u, 4u}) {
      SCOPED_TRACE(policy + ", groups of " + std::to_string(layers_per_group));
      RigOptions options = torture.hidden(layers_per_group);
      options.policy = policy;
      options.prefix_caching = layers_per_group == 4;
      const TierTortureOutcome out = torture.torture(options);
      EXPECT_EQ(out.wrong, 0u);
      plans += out.run.plans;
      if (policy == "apt-serve:rules=paper") by_the_paper += out.run.plans.switches_to_x;
    }
  }
  std::printf("%llu became X, %llu of them by the paper's rules, %llu became K and V, %llu came back as X\n",
              static_cast<unsigned long long>(plans.switches_to_x),
              static_cast<unsigned long long>(by_the_paper),
              static_cast<unsigned long long>(plans.switches_to_kv),
              static_cast<unsigned long long>(plans.returned_as_x));
  EXPECT_GT(plans.switches_to_x, 20u);
  EXPECT_GT(by_the_paper, 0u);
  EXPECT_GT(plans.switches_to_kv, 0u);
  EXPECT_GT(plans.returned_as_x, 10u);
}

// Preempted, they wait on the host as X in some layers and as K and V in the others.
TEST(HiddenTorture, RestoredFromTheHost) {
  uint64_t restores = 0;
  const TierTorture torture(torture_mha(), ops::WeightType::kQ4_1, ops::KvType::kBf16, 24, 81);
  for (const char* policy : {"hcache", "hcache:x-share=0.5"}) {
    for (uint32_t layers_per_group : {1u, 2u}) {
      SCOPED_TRACE(std::string(policy) + ", groups of " + std::to_string(layers_per_group));
      RigOptions options = torture.hidden(layers_per_group);
      options.policy = policy;
      options.prefix_caching = false;
      options.host_blocks = 90;
      EXPECT_EQ(torture.torture(options).wrong, 0u);
      options.link = RigLink::kFake;
      const TierTortureOutcome out = torture.torture(options);
      EXPECT_EQ(out.wrong, 0u);
      restores += out.run.plans.x_restores;
    }
  }
  std::printf("%llu restored from X\n", static_cast<unsigned long long>(restores));
  EXPECT_GT(restores, 0u);
}

TEST(HiddenTorture, OwnKeysForEachHead) {
  for (const HiddenArithmetic& a : {HiddenArithmetic{ops::WeightType::kF32, ops::KvType::kF32},
                                    HiddenArithmetic{ops::WeightType::kQ4_1, ops::KvType::kBf16}}) {
    torture(torture_mha(), a);
  }
}
TEST(HiddenTorture, SharedKeys) {
  torture(torture_gqa(), {ops::WeightType::kQ4_1, ops::KvType::kBf16});
}

}  // namespace
}  // namespace kvasir::test
