// Map, builder, checker and committer together at random: on one tier and on several, with a link that fails,
// and with cells in every form.
#include "cache/stress.h"
#include "support/levels.h"

namespace kvasir::test {
namespace {

Stress::Seen stress(const StressOptions& options, int operations = 3000) {
  Stress::Seen sum;
  const uint64_t seeds = at_full_level() ? 3 : 1;
  for (uint64_t seed = 1; seed <= seeds && !testing::Test::HasFailure(); ++seed) {
    Stress s(seed, options);
    s.run(operations);
    EXPECT_FALSE(testing::Test::HasFailure())
        << "seed " << seed << " depth " << options.depth << " layers per group " << options.layers_per_group;
    EXPECT_GT(s.seen().told, 20u);
    sum.rows += s.seen().rows;
    sum.staged += s.seen().staged;
    sum.written_through += s.seen().written_through;
    sum.swapped += s.seen().swapped;
    sum.brought_back += s.seen().brought_back;
    sum.deferred += s.seen().deferred;
    sum.adopted += s.seen().adopted;
    sum.saved += s.seen().saved;
    sum.projected += s.seen().projected;
    sum.again += s.seen().again;
  }
  return sum;
}

TEST(KvCacheStress, OnTheDeviceAlone) {
  StressOptions o;
  o.host_blocks = o.ring_blocks = 0;
  for (o.depth = 1; o.depth <= 2; ++o.depth) {
    const auto seen = stress(o);
    EXPECT_GT(seen.rows, 300u);
    EXPECT_GT(seen.adopted, 5u);
    EXPECT_EQ(seen.staged, 0u);
  }
}

TEST(KvCacheStress, WithAHostTier) {
  for (uint32_t per_group : {1u, 2u, 4u}) {
    StressOptions o;
    o.layers_per_group = per_group;
    for (o.depth = 1; o.depth <= 2; ++o.depth) {
      const auto seen = stress(o);
      EXPECT_GT(seen.rows, 300u);
      EXPECT_GT(seen.adopted, 5u);
      EXPECT_GT(seen.staged, 30u);
      EXPECT_GT(seen.written_through, 5u);
      EXPECT_GT(seen.swapped, 3u);
      EXPECT_GT(seen.brought_back, 3u);
      EXPECT_LT(seen.deferred, 5u) << "where a transfer that was cancelled with its sequence was counted on";
    }
  }
}

TEST(KvCacheStress, WithALinkThatFailsAndIsLate) {
  for (uint32_t per_group : {1u, 2u, 4u}) {
    StressOptions o;
    o.layers_per_group = per_group;
    o.failures = 0.03;
    o.impatience = 0.1;
    for (o.depth = 1; o.depth <= 2; ++o.depth) EXPECT_GT(stress(o).deferred, 15u);
  }
}

TEST(KvCacheStress, WithAnUnevenLastGroupAndLittleOfEverything) {
  StressOptions o;
  o.layers = 5;
  o.device_blocks = 7;
  o.host_blocks = 9;
  o.ring_blocks = 9;
  o.failures = 0.02;
  for (o.depth = 1; o.depth <= 2; ++o.depth) EXPECT_GT(stress(o).staged, 5u);
}

TEST(KvCacheStress, WithADiskBehindTheHostThatLosesThings) {
  StressOptions o;
  o.host_blocks = 20;
  o.disk_blocks = 40;
  o.failures = 0.01;
  o.corrupt = 0.02;
  for (o.depth = 1; o.depth <= 2; ++o.depth) {
    const auto seen = stress(o);
    EXPECT_GT(seen.staged, 5u);
    EXPECT_GT(seen.saved, 3u);
  }
}

TEST(KvCacheStress, WithADiskAlone) {
  StressOptions o;
  o.host_blocks = 0;
  o.disk_blocks = 40;
  for (o.depth = 1; o.depth <= 2; ++o.depth) EXPECT_GT(stress(o).staged, 5u);
}

TEST(KvCacheStress, WithXAndCellsThatAreDropped) {
  for (uint32_t per_group : {1u, 2u, 4u}) {
    StressOptions o;
    o.layers_per_group = per_group;
    o.x = true;
    o.drops = 0.9;
    o.ring_blocks = 24;
    for (o.depth = 1; o.depth <= 2; ++o.depth) {
      SCOPED_TRACE(testing::Message() << per_group << " layers a group, depth " << o.depth);
      const auto seen = stress(o);
      EXPECT_GT(seen.projected, 5u);
      EXPECT_GT(seen.again, 3u);
      EXPECT_LT(seen.deferred, 5u);
    }
  }
}

TEST(KvCacheStress, WithEverythingAndALinkThatFails) {
  StressOptions o;
  o.layers = 5;
  o.host_blocks = 12;
  o.disk_blocks = 20;
  o.x = true;
  o.drops = 0.6;
  o.ring_blocks = 24;
  o.failures = 0.02;
  o.corrupt = 0.02;
  o.impatience = 0.05;
  for (o.depth = 1; o.depth <= 2; ++o.depth) {
    const auto seen = stress(o);
    EXPECT_GT(seen.deferred, 5u);
    EXPECT_GT(seen.projected, 5u);
    EXPECT_GT(seen.again, 5u);
  }
}

TEST(KvCacheStress, WhatIsDroppedOnTheDeviceAlone) {
  StressOptions o;
  o.host_blocks = 0;
  o.x = true;
  o.drops = 0.5;
  for (o.depth = 1; o.depth <= 2; ++o.depth) EXPECT_GT(stress(o).again, 5u);
}

}  // namespace
}  // namespace kvasir::test
