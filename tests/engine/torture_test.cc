// Torture: whatever the schedule, every output is what its tokens alone say; and with each seeded fault, some
// output is not.
#include "engine/torture.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <tuple>

#include "base/mutant.h"

namespace kvasir::test {
namespace {

// KVASIR_LONG=1 makes everything here thirty times longer.
uint32_t scaled(uint32_t requests) {
  const char* value = std::getenv("KVASIR_LONG");
  return value && std::string(value) == "1" ? 30 * requests : requests;
}

void expect_right(const TortureConfig& config, const TortureOutcome& out) {
  EXPECT_EQ(out.wrong, 0u) << out.first_wrong;
  EXPECT_EQ(out.used_blocks_left, 0u);
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
  EXPECT_GT(out.preemptions, 0u);
  EXPECT_GT(out.aborted, 0u);
  if (config.prefix_caching) {
    EXPECT_GT(out.hit_tokens, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Torture,
                         testing::Combine(testing::Values("vllm", "sarathi", "random"), testing::Values(1, 2),
                                          testing::Values(1u, 3u), testing::Values(16u, 32u, 64u),
                                          testing::Bool()),
                         [](const auto& c) {
                           return std::get<0>(c.param) + "_depth" + std::to_string(std::get<1>(c.param)) +
                                  "_groups" + std::to_string(std::get<2>(c.param)) + "_block" +
                                  std::to_string(std::get<3>(c.param)) +
                                  (std::get<4>(c.param) ? "_prefix" : "_plain");
                         });

TEST(Torture, StepsThatFailEndOnlyTheirRequests) {
  for (const char* policy : {"vllm", "sarathi", "random"}) {
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

TEST(Torture, AmpleMemoryPreemptsNobody) {
  for (const char* policy : {"vllm", "sarathi"}) {
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
TEST(TortureMutants, ResumeSkipsTokenIsFound) {
  EXPECT_GT(wrong_with(Mutant::kResumeSkipsToken, 1), 0u);
}
#endif

}  // namespace
}  // namespace kvasir::test
