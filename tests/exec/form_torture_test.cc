// Every form on every tier, in any mixture, down to nothing: every answer is bit for bit that of an engine
// which has all keys and values on its device.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "exec/tier_torture.h"
#include "support/levels.h"

namespace kvasir::test {
namespace {

// Of all runs that repeat themselves together.
struct Sums {
  uint64_t runs = 0;
  uint64_t steps = 0;
  uint64_t requests = 0;
  uint64_t preemptions = 0;
  uint64_t deferred = 0;
  uint64_t cancelled = 0;
  uint64_t transfers = 0;
  uint64_t failed = 0;
  uint64_t cached_tokens = 0;
  PlanCounts plans;

  void add(const RigRun& run) {
    ++runs;
    steps += run.steps;
    requests += run.outputs.size();
    preemptions += run.preemptions;
    deferred += run.deferred_rows;
    transfers += run.link.transfers;
    failed += run.link.failed;
    plans += run.plans;
    for (const RigOutput& out : run.outputs) {
      cancelled += out.finish == FinishReason::kAbort;
      cached_tokens += out.cached_prompt_tokens;
    }
  }
  double share(uint64_t of_decodes) const {
    return static_cast<double>(of_decodes) / static_cast<double>(plans.decode_steps);
  }
  void print() const {
    const auto n = [](uint64_t v) { return static_cast<unsigned long long>(v); };
    std::printf(
        "%llu runs, %llu requests, %llu steps, %llu with a decode: of those %.0f %% over X, %.0f %% with "
        "cells "
        "on the disk, %.0f %% staged, %.0f %% recomputed; %llu preemptions, %llu deferred, %llu "
        "cancelled, %llu cached tokens, %llu transfers, %llu failed\n",
        n(runs), n(requests), n(steps), n(plans.decode_steps), 100 * share(plans.x_decode_steps),
        100 * share(plans.disk_decode_steps), 100 * share(plans.staged_decode_steps),
        100 * share(plans.again_decode_steps), n(preemptions), n(deferred), n(cancelled), n(cached_tokens),
        n(transfers), n(failed));
  }
};

// The ways of a link, and of a disk.
constexpr uint64_t kWays = 4;
void choose_link(uint64_t way, RigOptions& options) {
  switch (way % kWays) {
    case 0:  // as fast as the machine, and a file
      return;
    case 1:  // slow enough for rows to be deferred, and transfers to be in flight for several steps
      options.link_bytes_per_s = 200e6;
      options.max_decode_stall = kNanosPerMilli / 2;
      return;
    case 2:  // late and failing; what of that is read from the disk is corrupt
      options.link = RigLink::kFake;
      options.late_waits = 0.03;
      options.failing_transfers = 0.02;
      return;
    default:  // a file whose bytes are lost, or others than were written
      options.disk_faults = 0.02;
  }
}

// What X of the model is: int8, bf16, f32, or f32 because the products of K and V take different rows of it.
struct Arithmetic {
  ops::WeightType weights;
  ops::KvType kv;
  bool mixed = false;
};
constexpr Arithmetic kArithmetics[] = {
    {ops::WeightType::kQ4_1, ops::KvType::kQ8_0},
    {ops::WeightType::kBf16, ops::KvType::kBf16},
    {ops::WeightType::kF32, ops::KvType::kBf16},
    {ops::WeightType::kQ8_0, ops::KvType::kBf16, /*mixed=*/true},
};

// Layers of a group; 0: all.
constexpr uint32_t kGroupSizes[] = {1, 2, 3, 0};

// Every size of layer groups, and one link for each; kWays rounds meet all of them, and as many rounds as
// there are shapes meet every shape in every arithmetic.
void torture_once(const std::vector<TinyLlamaShape>& shapes, uint64_t round, Sums& sums) {
  for (size_t a = 0; a < std::size(kArithmetics); ++a) {
    const auto& [weights, kv, mixed] = kArithmetics[a];
    TinyLlamaShape shape = shapes[(a + round) % shapes.size()];
    shape.other_types.clear();
    if (mixed) shape.other_types = {{"attn_v", ops::WeightType::kBf16}};
    const TierTorture torture(shape, weights, kv, 12, 50 + round);
    for (size_t f = 0; f < std::size(kGroupSizes); ++f) {
      const uint64_t way = (round + a + f) % kWays;
      RigOptions options = torture.forms(kGroupSizes[f]);
      choose_link(way, options);
      options.threads = 1 + static_cast<int>(round % 3);
      options.seed += 1000 * way;
      SCOPED_TRACE(shape.architecture + ", " + ops::weight_type_name(weights) + (mixed ? ", mixed" : "") +
                   ", groups of " + std::to_string(kGroupSizes[f]) + ", link " + std::to_string(way) +
                   ", round " + std::to_string(round));
      const TierTortureOutcome out = torture.torture(options);
      EXPECT_EQ(out.wrong, 0u);
      if (options.repeats_itself()) sums.add(out.run);
    }
  }
}

void torture_long(const std::vector<TinyLlamaShape>& shapes) {
  const uint64_t least_steps = at_long_level() ? 14'000 : 1;
  Sums sums;
  for (uint64_t round = 0; sums.steps < least_steps && !testing::Test::HasFailure(); ++round) {
    torture_once(shapes, round, sums);
  }
  sums.print();
  EXPECT_GE(sums.share(sums.plans.x_decode_steps), 0.2);
  EXPECT_GE(sums.share(sums.plans.disk_decode_steps), 0.2);
  EXPECT_GE(sums.share(sums.plans.staged_decode_steps), 0.2);
  EXPECT_GE(sums.share(sums.plans.again_decode_steps), 0.2);
  EXPECT_GT(sums.preemptions, 0u);
  EXPECT_GT(sums.deferred, 0u);
  EXPECT_GT(sums.cancelled, 0u);
  EXPECT_GT(sums.failed, 0u);
  EXPECT_GT(sums.cached_tokens, 0u);
}

TEST(FormTorture, OwnKeysForEachHeadWithBias) {
  TinyLlamaShape opt = torture_bias();
  opt.architecture = "opt";
  torture_long({torture_bias(), opt});
}
TEST(FormTorture, SharedKeys) {
  TinyLlamaShape shape = torture_gqa();
  shape.layers = 5;
  torture_long({shape, torture_architecture("gemma3"), torture_architecture("gemma4"),
                torture_architecture("gemma2"), torture_architecture("olmo2")});
}

}  // namespace
}  // namespace kvasir::test
