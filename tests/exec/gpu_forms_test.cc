// Histories kept as X on a GPU, in any mixture with K and V and with what is computed again: every answer is
// bit for bit that of an engine which has all keys and values on its device.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "exec/tier_torture.h"
#include "support/levels.h"

namespace kvasir::test {
namespace {

struct FormSums {
  PlanCounts plans;
  uint64_t steps = 0, preemptions = 0, deferred = 0, failed = 0, cached = 0, queued_early = 0;
  uint64_t from_disk = 0;  // bytes

  void add(const RigRun& run) {
    plans += run.plans;
    steps += run.steps;
    preemptions += run.preemptions;
    deferred += run.deferred_rows;
    failed += run.link.failed;
    from_disk += run.link.bytes[index_of(Tier::kDisk)][index_of(Tier::kDevice)];
    queued_early += run.queued_early;
    for (const RigOutput& out : run.outputs) cached += out.cached_prompt_tokens;
  }
  double x_share() const {
    return static_cast<double>(plans.x_decode_steps) / static_cast<double>(plans.decode_steps);
  }
  void print() const {
    const auto n = [](uint64_t v) { return static_cast<unsigned long long>(v); };
    std::printf(
        "%llu steps, %llu with a decode: of those %.0f %% over X; %llu restored from X, %llu preemptions, "
        "%llu "
        "deferred, %llu failed, %llu cached, %llu queued early\n",
        n(steps), n(plans.decode_steps), 100 * x_share(), n(plans.x_restores), n(preemptions), n(deferred),
        n(failed), n(cached), n(queued_early));
  }
};

// Kept as X where memory is short, projected for each token, and made K and V again where there is room.
void torture_hidden(const TinyLlamaShape& shape, ops::WeightType weights, FakeGpuPace pace) {
  FormSums sums;
  const TierTorture torture(shape, weights, ops::KvType::kBf16, 20, 70, pace);
  for (const char* policy : {"apt-serve:hidden-share=1", "apt-serve-s:hidden-share=1"}) {
    for (uint32_t layers_per_group : {1U, 2U}) {
      SCOPED_TRACE(std::string(policy) + ", groups of " + std::to_string(layers_per_group));
      RigOptions options = torture.hidden(layers_per_group);
      options.policy = policy;
      options.prefix_caching = layers_per_group != 2;
      options.gpu_passes = layers_per_group == 2;
      options.gpu_depth = layers_per_group == 2 ? 1 : 2;
      const TierTortureOutcome out = torture.torture(options);
      EXPECT_EQ(out.wrong, 0U);
      sums.add(out.run);
    }
  }
  sums.print();
  EXPECT_GE(sums.x_share(), 0.2);
  EXPECT_GT(sums.preemptions, 0U);
  EXPECT_GT(sums.cached, 0U);
  EXPECT_GT(sums.queued_early, 0U);
}

TEST(GpuForms, OwnKeysForEachHead) {
  torture_hidden(torture_mha(), ops::WeightType::kF32, FakeGpuPace::kLate);
}
// X is half of K and V.
TEST(GpuForms, SharedKeysOfWeightsInFourBits) {
  TinyLlamaShape shape = torture_gqa();
  shape.head_dim = 64;
  torture_hidden(shape, ops::WeightType::kQ4_1, FakeGpuPace::kRandom);
}

// Preempted, they wait on the host as X in some layers and as K and V in the others.
TEST(GpuForms, RestoredFromTheHost) {
  FormSums sums;
  const TierTorture torture(torture_mha(), ops::WeightType::kF32, ops::KvType::kBf16, 24, 81,
                            FakeGpuPace::kRandom);
  for (const char* policy : {"hcache", "hcache:x-share=0.5"}) {
    for (uint32_t layers_per_group : {1U, 2U}) {
      SCOPED_TRACE(std::string(policy) + ", groups of " + std::to_string(layers_per_group));
      RigOptions options = torture.hidden(layers_per_group);
      options.policy = policy;
      options.prefix_caching = false;
      options.host_blocks = 90;
      EXPECT_EQ(torture.torture(options).wrong, 0U) << "a link in real time";
      options.late_moves = 0.03;
      options.failing_moves = 0.02;
      EXPECT_EQ(torture.torture(options).wrong, 0U) << "one that is late and fails";
#if !defined(KVASIR_ON_DEVICE)
      options.link = RigLink::kFake;
      options.fast_transfers = 0.3;
#endif
      const TierTortureOutcome out = torture.torture(options);
      EXPECT_EQ(out.wrong, 0U);
      sums.add(out.run);
    }
  }
  sums.print();
  EXPECT_GT(sums.plans.x_restores, 0U);
}

// Cells in every form on device and host, some recomputed, with links that are late and fail.
void torture_forms(const TinyLlamaShape& shape, FakeGpuPace pace) {
  const uint64_t least_steps = at_long_level() ? 7'000 : 300;
  FormSums sums;
  for (uint64_t round = 0; sums.steps < least_steps && !testing::Test::HasFailure(); ++round) {
    const TierTorture torture(shape, ops::WeightType::kBf16, ops::KvType::kBf16, 12, 50 + round, pace);
    for (uint32_t layers_per_group : {1U, 2U, 0U}) {
      SCOPED_TRACE("groups of " + std::to_string(layers_per_group) + ", round " + std::to_string(round));
      RigOptions options = torture.forms(layers_per_group);
      options.gpu_depth = 1 + static_cast<int>((round + layers_per_group) % 2);
      options.gpu_passes = layers_per_group == 2;
      options.gpu_graphs = (round + layers_per_group) % 2 == 0;
      if (round == 0) {
        RigOptions in_real_time = options;
        in_real_time.late_moves = 0.03;
        in_real_time.failing_moves = 0.02;
        in_real_time.disk_faults = layers_per_group == 1 ? 0 : 0.02;
        EXPECT_EQ(torture.torture(in_real_time).wrong, 0U) << "in real time";
      }
#if !defined(KVASIR_ON_DEVICE)
      options.link = RigLink::kFake;
      options.late_waits = 0.03;
      options.failing_transfers = 0.02;
      options.fast_transfers = 0.3;
#endif
      const TierTortureOutcome out = torture.torture(options);
      EXPECT_EQ(out.wrong, 0U);
      sums.add(out.run);
    }
  }
  sums.print();
  EXPECT_GE(sums.x_share(), 0.2);
  EXPECT_GT(sums.plans.staged_decode_steps, 0U);
  EXPECT_GT(sums.plans.again_decode_steps, 0U);
  EXPECT_GT(sums.from_disk, 0U);
#if !defined(KVASIR_ON_DEVICE)
  EXPECT_GT(sums.deferred, 0U);
  EXPECT_GT(sums.failed, 0U);
#endif
}

TEST(GpuForms, EveryFormWithBias) {
  torture_forms(torture_bias(), FakeGpuPace::kLate);
}
TEST(GpuForms, EveryFormWithNormsOfRows) {
  torture_forms(torture_architecture("olmo2"), FakeGpuPace::kEarly);
}
TEST(GpuForms, EveryFormWithWindows) {
  torture_forms(torture_architecture("gemma3"), FakeGpuPace::kRandom);
}

}  // namespace
}  // namespace kvasir::test
