// In how many layers a history is kept as X, worked by hand and against all that there are.
#include "sched/mechanisms/restore_split.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvasir::test {
namespace {

// K and V of a token and layer take 16 bytes.
CacheGeometry split_geometry(uint32_t layers, uint32_t layers_per_group, uint64_t x_bytes) {
  CacheGeometry g;
  g.block_tokens = 16;
  g.layers = layers;
  g.layers_per_group = layers_per_group;
  g.kv_plane_bytes_per_token_layer = 8;
  g.x_bytes_per_token_layer = x_bytes;
  return g;
}

// 32 layers, X half of K and V: B (8 n + 16 (32 - n)) = n p.
TEST(RestoreSplit, WorkedByHand) {
  const CacheGeometry g = split_geometry(32, 1, 8);
  EXPECT_EQ(groups_kept_as_x(g, {1, 8}), 32u) << "as long to project as to move: all as X";
  EXPECT_EQ(groups_kept_as_x(g, {1, 24}), 16u) << "512 / (24 + 8): 384 s of each";
  EXPECT_DOUBLE_EQ(restore_seconds(g, {1, 24}, 16), 384);
  EXPECT_DOUBLE_EQ(restore_seconds(g, {1, 24}, 0), 512);
  EXPECT_DOUBLE_EQ(restore_seconds(g, {1, 24}, 32), 768);
  EXPECT_EQ(groups_kept_as_x(g, {1, 120}), 4u);
  EXPECT_EQ(groups_kept_as_x(g, {1, 1e9}), 0u) << "never project";
  EXPECT_EQ(groups_kept_as_x(g, {1, 1e-9}), 32u) << "a slow link";
  EXPECT_EQ(groups_kept_as_x(g, {1, 0}), 32u);
}

// Groups of 8 layers, of which the last has 4: 28 layers and three or four groups.
TEST(RestoreSplit, OfWholeGroups) {
  const CacheGeometry g = split_geometry(28, 8, 8);
  // 448 - 8 n against 12 n, in seconds: 320 at n = 16, and 288 at 24, where the link is the faster, 288 s.
  EXPECT_DOUBLE_EQ(restore_seconds(g, {1, 12}, 2), 320);
  EXPECT_DOUBLE_EQ(restore_seconds(g, {1, 12}, 3), 288);
  EXPECT_DOUBLE_EQ(restore_seconds(g, {1, 12}, 4), 336);
  EXPECT_EQ(groups_kept_as_x(g, {1, 12}), 3u);
}

TEST(RestoreSplit, NoneWhereXIsNoSmaller) {
  EXPECT_EQ(groups_kept_as_x(split_geometry(32, 1, 16), {1, 1e-6}), 0u);
  EXPECT_EQ(groups_kept_as_x(split_geometry(32, 1, 24), {1, 1e-6}), 0u);
  EXPECT_EQ(groups_kept_as_x(split_geometry(32, 1, 0), {1, 1e-6}), 0u);
}

TEST(RestoreSplit, NoOtherIsBetter) {
  Random random(3);
  for (int round = 0; round < 2000; ++round) {
    const auto layers = static_cast<uint32_t>(random.between(1, 80));
    const auto per_group = static_cast<uint32_t>(random.between(1, layers));
    const CacheGeometry g =
        split_geometry(layers, per_group, 4 * static_cast<uint64_t>(random.between(1, 3)));
    const RestoreCost cost = {1e-9 * random.unit(), 4e-8 * random.unit()};
    const uint32_t chosen = groups_kept_as_x(g, cost);
    const double best = restore_seconds(g, cost, chosen);
    for (uint32_t n = 0; n <= g.groups(); ++n) {
      EXPECT_GE(restore_seconds(g, cost, n), best * (1 - 1e-12)) << layers << " " << per_group << " " << n;
    }
  }
}

}  // namespace
}  // namespace kvasir::test
