// Whatever is where, and whatever moves: every answer is bit for bit that of an engine without limits.
#include "exec/tier_torture.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "support/levels.h"
#include "support/policies.h"

namespace kvasir::test {
namespace {

// Of all runs that repeat themselves together.
struct TierSums {
  uint64_t steps = 0;
  uint64_t requests = 0;
  uint64_t preemptions = 0;
  uint64_t swapped = 0;
  uint64_t deferred = 0;
  uint64_t cancelled = 0;
  uint64_t transfers = 0;
  uint64_t failed = 0;
  uint64_t cached_tokens = 0;
  PlanCounts plans;

  void add(const RigRun& run) {
    steps += run.steps;
    requests += run.outputs.size();
    preemptions += run.preemptions;
    swapped += run.swapped;
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
        "%llu requests, %llu plans, %llu steps, %llu with a decode: of those %.0f %% staged, %.0f %% "
        "partial; "
        "%llu preemptions, %llu to the host, %llu deferred, %llu cancelled, %llu ragged copies, "
        "%llu transfers, %llu failed\n",
        n(requests), n(plans.plans), n(steps), n(plans.decode_steps), 100 * share(plans.staged_decode_steps),
        100 * share(plans.partial_decode_steps), n(preemptions), n(swapped), n(deferred), n(cancelled),
        n(plans.ragged_copies), n(transfers), n(failed));
  }
};

// The ways of a link.
void choose_tier_link(uint64_t way, RigOptions& options) {
  switch (way % 3) {
    case 0:  // as fast as the machine
      return;
    case 1:  // slow enough for rows to be deferred, and transfers to be in flight for several steps
      options.link_bytes_per_s = 200e6;
      options.max_decode_stall = kNanosPerMilli / 2;
      return;
    default:
      options.link = RigLink::kFake;
      options.late_waits = 0.03;
      options.failing_transfers = 0.02;
  }
}

using OptionsOf = RigOptions (TierTorture::*)(uint32_t) const;

// One round: every size of layer groups and every link, for two kinds of arithmetic.
void torture_once(const TinyLlamaShape& shape, OptionsOf options_of, uint64_t round, TierSums& sums) {
  for (const auto& [weights, kv] :
       {std::pair{ops::WeightType::kF32, ops::KvType::kBf16}, {ops::WeightType::kQ4_1, ops::KvType::kQ8_0}}) {
    const TierTorture torture(shape, weights, kv, 16, 50 + round);
    for (uint32_t layers_per_group = 1; layers_per_group <= 2; ++layers_per_group) {
      for (uint64_t way = 0; way < 3; ++way) {
        RigOptions options = (torture.*options_of)(layers_per_group);
        choose_tier_link(way, options);
        options.seed += 1000 * way;
        SCOPED_TRACE(std::string(ops::weight_type_name(weights)) + ", groups of " +
                     std::to_string(layers_per_group) + ", link " + std::to_string(way) + ", round " +
                     std::to_string(round));
        const TierTortureOutcome out = torture.torture(options);
        EXPECT_EQ(out.wrong, 0u);
        if (options.repeats_itself()) sums.add(out.run);
      }
    }
  }
}

void torture_tiers(const TinyLlamaShape& shape) {
  const uint64_t least_steps = at_long_level() ? 20'000 : 700;
  TierSums sums;
  for (uint64_t round = 0; sums.steps < least_steps && !testing::Test::HasFailure(); ++round) {
    torture_once(shape, &TierTorture::tiers, round, sums);
  }
  sums.print();
  EXPECT_GE(sums.share(sums.plans.staged_decode_steps), 0.2);
  EXPECT_GE(sums.share(sums.plans.partial_decode_steps), 0.1);
  EXPECT_GT(sums.swapped, 0u);
  EXPECT_GT(sums.preemptions, sums.swapped);
  EXPECT_GT(sums.deferred, 0u);
  EXPECT_GT(sums.cancelled, 0u);
  EXPECT_GT(sums.failed, 0u);
  EXPECT_GT(sums.plans.ragged_copies, 0u);
  EXPECT_GT(sums.cached_tokens, 0u);
}

TEST(TierTorture, OwnKeysForEachHead) {
  torture_tiers(torture_mha());
}
TEST(TierTorture, SharedKeys) {
  torture_tiers(torture_gqa());
}

// Cells behind windows that cut blocks and leaves are given up: what is expected was computed on a device
// with room for all. Of Gemma 4 the layers with windows have other heads than those without.
TEST(TierTorture, WindowsUnderEveryPolicy) {
  for (const auto& [architecture, window] : {std::pair("gemma3", 96), {"gemma3", 256}, {"gemma4", 96}}) {
    TinyLlamaShape shape = torture_architecture(architecture);
    shape.window = window;
    TierSums sums;
    torture_once(shape, &TierTorture::tiers, /*round=*/0, sums);
    const TierTorture torture(shape, ops::WeightType::kF32, ops::KvType::kBf16, 16, 60);
    for (const std::string& policy : every_policy()) {
      SCOPED_TRACE(policy + ", " + architecture + ", a window of " + std::to_string(window));
      RigOptions options = torture.tiers(1);
      options.policy = in_order_of_arrival(policy);
      options.link = RigLink::kFake;
      const TierTortureOutcome out = torture.torture(options);
      EXPECT_EQ(out.wrong, 0u);
      EXPECT_GT(out.run.plans.dead_blocks, 0u);
      options.windows_free_memory = false;
      const TierTortureOutcome kept = torture.torture(options);
      EXPECT_EQ(kept.wrong, 0u) << "where all is kept";
      EXPECT_EQ(kept.run.plans.dead_blocks, 0u);
    }
  }
}

// Rows of latent attention are one plane: copies, prefixes, preemptions and recomputation under every policy
// give the bits of a device with room for all. Policies that keep X have none.
TEST(TierTorture, LatentAttentionUnderEveryPolicy) {
  for (TinyLlamaShape shape : tiny_latents()) {
    SCOPED_TRACE(shape.q_rank);
    shape.context = 640;
    TierSums sums;
    torture_once(shape, &TierTorture::tiers, /*round=*/0, sums);
    EXPECT_GT(sums.preemptions, 0u);
    EXPECT_GT(sums.deferred, 0u);
    EXPECT_GT(sums.plans.ragged_copies, 0u);
    EXPECT_GT(sums.cached_tokens, 0u);
    const TierTorture torture(shape, ops::WeightType::kF32, ops::KvType::kBf16, 16, 60);
    for (const std::string& policy : every_policy()) {
      SCOPED_TRACE(policy);
      RigOptions options = torture.tiers(1);
      options.policy = in_order_of_arrival(policy);
      options.link = RigLink::kFake;
      EXPECT_EQ(torture.torture(options).wrong, 0u);
    }
    RigOptions dropped = torture.forms(1);  // cells are dropped and recomputed
    dropped.forms = false;
    EXPECT_EQ(torture.torture(dropped).wrong, 0u);
  }
}

// States of recurrent layers, in four parts of a layer: what is behind the last block is copied, found, given
// up, preempted, and replayed from the block before, under every policy.
TEST(TierTorture, RecurrentLayersUnderEveryPolicy) {
  TinyLlamaShape shape = tiny_hybrids()[0];
  shape.context = 640;
  TierSums sums;
  torture_once(shape, &TierTorture::tiers, /*round=*/0, sums);
  EXPECT_GT(sums.preemptions, 0u);
  EXPECT_GT(sums.deferred, 0u);
  EXPECT_GT(sums.plans.ragged_copies, 0u);
  const TierTorture torture(shape, ops::WeightType::kF32, ops::KvType::kBf16, 16, 60);
  for (const std::string& policy : every_policy()) {
    SCOPED_TRACE(policy);
    RigOptions options = torture.tiers(1);
    options.policy = in_order_of_arrival(policy);
    options.link = RigLink::kFake;
    const TierTortureOutcome out = torture.torture(options);
    EXPECT_EQ(out.wrong, 0u);
    EXPECT_GT(out.run.plans.dead_blocks, 0u);
  }
  RigOptions dropped = torture.forms(1);  // cells are dropped and recomputed
  dropped.forms = false;
  EXPECT_EQ(torture.torture(dropped).wrong, 0u);
}

// LayerKV offloads by layers: in many steps some sequence that has rows is on the device in part.
TEST(TierTorture, LayersOffloaded) {
  const uint64_t least_steps = at_long_level() ? 20'000 : 700;
  for (const TinyLlamaShape& shape : {torture_mha(), torture_gqa()}) {
    TierSums sums;
    for (uint64_t round = 0; sums.steps < least_steps && !HasFailure(); ++round) {
      torture_once(shape, &TierTorture::layers, round, sums);
    }
    sums.print();
    const double share = static_cast<double>(sums.plans.partial_steps) / static_cast<double>(sums.steps);
    std::printf("in %.0f %% of the steps a sequence has rows whose layers are on the device in part\n",
                100 * share);
    EXPECT_GE(share, 0.2);
    EXPECT_GE(sums.share(sums.plans.staged_decode_steps), 0.2);
    EXPECT_GT(sums.deferred, 0u);
    EXPECT_GT(sums.cancelled, 0u);
    EXPECT_GT(sums.failed, 0u);
    EXPECT_GT(sums.cached_tokens, 0u);
  }
}

}  // namespace
}  // namespace kvasir::test
