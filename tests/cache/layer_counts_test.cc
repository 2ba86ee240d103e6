// Counts of sets against an array of integers.
#include "cache/blocks/layer_counts.h"

#include <gtest/gtest.h>

#include <array>

#include "base/random.h"

namespace kvasir {
namespace {

TEST(LayerCounts, AgreeWithIntegersUnderRandomSets) {
  Random random(3);
  LayerCounts counts;
  std::array<uint32_t, kMaxLayerGroups> model{};
  for (int i = 0; i < 5000; ++i) {
    const bool up = random.below(2) == 0 || i < 40;
    LayerSet groups;
    for (uint32_t g = 0; g < kMaxLayerGroups; ++g) {
      if (random.below(3) == 0 && (up || model[g] > 0)) groups.add(g);
    }
    groups.for_each([&](uint32_t g) { model[g] += up ? 1 : -1u; });
    if (up) {
      counts.add(groups);
    } else {
      counts.remove(groups);
    }
    uint64_t total = 0;
    for (uint32_t g = 0; g < kMaxLayerGroups; ++g) {
      total += model[g];
      ASSERT_EQ(counts.counted().contains(g), model[g] > 0) << "group " << g << " after " << i;
    }
    ASSERT_EQ(counts.total(), total);
  }
}

TEST(LayerCountsDeathTest, TakesNothingThatWasNotCounted) {
  LayerCounts counts;
  counts.add(LayerSet::one(3));
  EXPECT_DEATH(counts.remove(LayerSet::one(4)), "not counted");
}

}  // namespace
}  // namespace kvasir
