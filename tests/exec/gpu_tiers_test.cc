// Transfers while a GPU works: marks, gates, slices that leave the step, links that are late and fail.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "exec/tier_torture.h"
#include "support/levels.h"

namespace kvasir::test {
namespace {

// Of the runs that repeat themselves, but for what was cached; on a device, where none does, of all.
struct Sums {
  uint64_t steps = 0, staged = 0, partial = 0, deferred = 0, failed = 0, swapped = 0, cached = 0;
  uint64_t queued_early = 0, queued_long = 0, graphs = 0;

  void add(const RigOptions& options, const RigRun& run) {
    for (const RigOutput& out : run.outputs) cached += out.cached_prompt_tokens;
#if !defined(KVASIR_ON_DEVICE)
    if (!options.repeats_itself()) return;
#endif
    steps += run.steps;
    staged += run.plans.staged_decode_steps;
    partial += run.plans.partial_steps;
    deferred += run.deferred_rows;
    failed += run.link.failed;
    swapped += run.swapped;
    if (options.gpu_depth == 1) {
      EXPECT_EQ(run.queued_early, 0U);
    }
    queued_early += run.queued_early;
    queued_long += run.queued_long;
    if (!options.gpu_graphs) {
      EXPECT_EQ(run.graphs, 0U);
    }
    graphs += run.graphs;
  }
  void print() const {
    const auto n = [](uint64_t v) { return static_cast<unsigned long long>(v); };
    std::printf(
        "%llu steps: %llu staged, %llu partial; %llu deferred, %llu failed, %llu swapped, %llu cached, %llu "
        "queued early, %llu long, %llu graphs\n",
        n(steps), n(staged), n(partial), n(deferred), n(failed), n(swapped), n(cached), n(queued_early),
        n(queued_long), n(graphs));
  }
};

void choose_link(uint64_t way, RigOptions& options) {
  if (way == 1) {  // slow enough for rows to be deferred
    options.link_bytes_per_s = 200e6;
    options.max_decode_stall = kNanosPerMilli / 2;
  }
#if !defined(KVASIR_ON_DEVICE)
  if (way == 2) {
    options.link = RigLink::kFake;
    options.late_waits = 0.03;
    options.failing_transfers = 0.02;
    options.fast_transfers = 0.3;
  }
#endif
  if (way == 3) {  // in real time
    options.late_moves = 0.03;
    options.failing_moves = 0.02;
  }
}

void torture(const TinyLlamaShape& shape, FakeGpuPace pace) {
  const uint64_t least_steps = at_long_level() ? 7'000 : 200;
  Sums sums;
  for (uint64_t round = 0; sums.steps < least_steps && !testing::Test::HasFailure(); ++round) {
    const TierTorture tiers(shape, ops::WeightType::kF32, ops::KvType::kBf16, 16, 50 + round, pace);
    for (uint32_t layers_per_group = 1; layers_per_group <= 2; ++layers_per_group) {
      for (uint64_t way = 0; way < 4; ++way) {
        SCOPED_TRACE("groups of " + std::to_string(layers_per_group) + ", link " + std::to_string(way) +
                     ", round " + std::to_string(round));
        RigOptions options = tiers.tiers(layers_per_group);
        choose_link(way, options);
        options.seed += 1000 * way;
        options.gpu_depth = 1 + static_cast<int>((way + layers_per_group) % 2);
        options.gpu_passes = layers_per_group == 2;
        options.gpu_graphs = (way / 2 + layers_per_group) % 2 == 0;
        const TierTortureOutcome out = tiers.torture(options);
        EXPECT_EQ(out.wrong, 0U);
        sums.add(options, out.run);
      }
    }
  }
  sums.print();
  EXPECT_GT(sums.staged, sums.steps / 10);
  EXPECT_GT(sums.deferred, 0U);
#if !defined(KVASIR_ON_DEVICE)
  EXPECT_GT(sums.failed, 0U);
#endif
  EXPECT_GT(sums.swapped, 0U);
  EXPECT_GT(sums.cached, 0U);
  EXPECT_GT(sums.queued_early, 0U);
  EXPECT_GT(sums.graphs, 0U);
}

TEST(GpuTiers, WorkRunsAtOnce) {
  torture(torture_gqa(), FakeGpuPace::kEarly);
}
TEST(GpuTiers, WorkRunsAsLateAsItMay) {
  torture(torture_mha(), FakeGpuPace::kLate);
}
TEST(GpuTiers, WorkRunsAtRandomMoments) {
  torture(torture_gqa(), FakeGpuPace::kRandom);
}

// More entries than a stream has room for.
TEST(GpuTiers, DeepModels) {
  TinyLlamaShape shape = torture_mha();
  shape.layers = 80;
  shape.dim = shape.head_dim = shape.ffn = 32;
  shape.heads = shape.kv_heads = 1;
  shape.vocab = 300;
  const TierTorture tiers(shape, ops::WeightType::kBf16, ops::KvType::kBf16, 5, 50, FakeGpuPace::kRandom);
  Sums sums;
  for (uint64_t way = 0; way < 4; ++way) {
    RigOptions options = tiers.tiers(1);
    choose_link(way, options);
    options.gpu_depth = 2 - static_cast<int>(way % 2);
    const TierTortureOutcome out = tiers.torture(options);
    EXPECT_EQ(out.wrong, 0U) << way;
    sums.add(options, out.run);
  }
  sums.print();
  EXPECT_GT(sums.staged, 0U);
  EXPECT_GT(sums.queued_early, 0U);
  EXPECT_GT(sums.queued_long, 0U);
}

// A policy that moves layers, and one that recomputes and stages parts of histories.
TEST(GpuTiers, LayersAreOffloaded) {
  const TierTorture tiers(torture_mha(), ops::WeightType::kF32, ops::KvType::kBf16, 16, 50,
                          FakeGpuPace::kRandom);
  Sums sums;
  for (uint64_t way = 0; way < 4; ++way) {
    RigOptions options = tiers.layers(1);
    choose_link(way, options);
    options.gpu_passes = way > 0;
    options.gpu_graphs = way % 2 == 0;
    const TierTortureOutcome out = tiers.torture(options);
    EXPECT_EQ(out.wrong, 0U) << way;
    sums.add(options, out.run);
  }
  sums.print();
  EXPECT_GT(sums.partial, sums.steps / 10);
}

}  // namespace
}  // namespace kvasir::test
