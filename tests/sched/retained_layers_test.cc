// Equation 4 of LayerKV with numbers, and which layers are kept.
#include "sched/mechanisms/retained_layers.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvasir {
namespace {

// Of a 7B model: 32 layers, 32 heads of 128 elements of 2 bytes, so that K and V of a token and layer take
// 2 x 32 x 128 x 2 = 16,384 bytes.
CacheGeometry seven_b(uint32_t kv_heads = 32, uint32_t layers_per_group = 1) {
  return {16, 32, layers_per_group, uint64_t{kv_heads} * 128 * 2};
}
constexpr LinkCost kLink = {.latency_s = 0, .seconds_per_byte = 1 / 25e9};
constexpr LinkCost kSlowLink = {.latency_s = 0, .seconds_per_byte = 1 / 2.5e9};

// ---------------------------------------------------------------- Equation 4

TEST(LeastRetained, NoneWhereThePrefillHidesAll) {
  // 512 tokens: 512 x 16,384 x 32 = 268.4e6 bytes, 10.74 ms at 25 GB/s, 0.3355 ms a layer; the prefill takes
  // 97 ms.
  EXPECT_EQ(least_retained_groups(seven_b(), kLink, 512, 97e-3, 1), 0u);
  // On the two sides of 10.737 ms: 32 layers hide, or 31.
  EXPECT_EQ(least_retained_groups(seven_b(), kLink, 512, 10.738e-3, 1), 0u);
  EXPECT_EQ(least_retained_groups(seven_b(), kLink, 512, 10.736e-3, 1), 1u);
}

TEST(LeastRetained, SomeWhereTheLinkIsSlow) {
  // At 2.5 GB/s a layer takes 3.355 ms: in 97 ms 28.9 layers go, so that 4 stay; in 50 ms 14.9, 18 stay.
  EXPECT_EQ(least_retained_groups(seven_b(), kSlowLink, 512, 97e-3, 1), 4u);
  EXPECT_EQ(least_retained_groups(seven_b(), kSlowLink, 512, 50e-3, 1), 18u);
}

TEST(LeastRetained, SomeWhereThePrefillIsShort) {
  // 64 tokens: a layer of 1,048,576 bytes takes 41.94 us at 25 GB/s; in 1 ms 23.8 go, so that 9 stay.
  EXPECT_EQ(least_retained_groups(seven_b(), kLink, 64, 1e-3, 1), 9u);
  // Rows behind a cached prefix are few, and quick.
  EXPECT_EQ(least_retained_groups(seven_b(), kLink, 64, 0.04e-3, 1), 32u);
  EXPECT_EQ(least_retained_groups(seven_b(), kLink, 64, 0, 1), 32u);
  EXPECT_EQ(least_retained_groups(seven_b(), kLink, 64, -1, 1), 32u);
}

TEST(LeastRetained, CountsTheHeadsOfKeysAndValues) {
  // With 8 of them a quarter: 0.8389 ms a layer at 2.5 GB/s. In 50 ms 59 would go; in 10 ms 11.9.
  EXPECT_EQ(least_retained_groups(seven_b(8), kSlowLink, 512, 50e-3, 1), 0u);
  EXPECT_EQ(least_retained_groups(seven_b(8), kSlowLink, 512, 10e-3, 1), 21u);
}

TEST(LeastRetained, CountsInGroups) {
  // Four layers a group, 1.342 ms: in 10.738 ms all 8 groups go, in 10.736 ms 7, in 5 ms 3 (3.7).
  EXPECT_EQ(least_retained_groups(seven_b(32, 4), kLink, 512, 10.738e-3, 1), 0u);
  EXPECT_EQ(least_retained_groups(seven_b(32, 4), kLink, 512, 10.736e-3, 1), 1u);
  EXPECT_EQ(least_retained_groups(seven_b(32, 4), kLink, 512, 5e-3, 1), 5u);
}

TEST(LeastRetained, BetaScalesTheLink) {
  // Twice 0.3355 ms a layer: in 10.738 ms 16 go.
  EXPECT_EQ(least_retained_groups(seven_b(), kLink, 512, 10.738e-3, 2), 16u);
  EXPECT_EQ(least_retained_groups(seven_b(), kLink, 512, 10.738e-3, 0), 0u);
}

TEST(LeastRetained, NothingIsKnownOfTheLink) {
  EXPECT_EQ(least_retained_groups(seven_b(), LinkCost{}, 512, 1e-6, 1), 0u);
}

// ---------------------------------------------------------------- which

std::vector<uint32_t> groups_of(const LayerSet& set) {
  std::vector<uint32_t> out;
  set.for_each([&](uint32_t g) { out.push_back(g); });
  return out;
}
std::vector<uint32_t> spread(uint32_t count, uint32_t all) {
  return groups_of(spread_evenly(LayerSet::all(all), count));
}

TEST(SpreadEvenly, FourOfEight) {
  EXPECT_EQ(spread(4, 8), (std::vector<uint32_t>{1, 3, 5, 7}));
}

TEST(SpreadEvenly, WhereTheShareDoesNotDivide) {
  // The running share of three in eight, 3 i / 8, passes 1 at i = 3, 2 at 6 and 3 at 8: the groups 2, 5, 7.
  EXPECT_EQ(spread(3, 8), (std::vector<uint32_t>{2, 5, 7}));
  EXPECT_EQ(spread(1, 8), (std::vector<uint32_t>{7}));
  // 6 i / 8 stays below the next whole number at i = 1 and 5 alone.
  EXPECT_EQ(spread(6, 8), (std::vector<uint32_t>{1, 2, 3, 5, 6, 7}));
}

TEST(SpreadEvenly, AnyCountWithEvenGaps) {
  for (uint32_t all : {1u, 2u, 7u, 8u, 32u, 80u, 128u}) {
    EXPECT_TRUE(spread(0, all).empty());
    EXPECT_EQ(spread(all, all), groups_of(LayerSet::all(all)));
    for (uint32_t count = 1; count <= all; ++count) {
      const std::vector<uint32_t> out = spread(count, all);
      ASSERT_EQ(out.size(), count) << all;
      // The groups before the first, and from one to the next, are all / count of them, rounded down or up.
      uint32_t end = 0;
      for (uint32_t g : out) {
        const uint32_t gap = g + 1 - end;
        EXPECT_GE(gap, all / count) << count << " of " << all;
        EXPECT_LE(gap, (all + count - 1) / count) << count << " of " << all;
        end = g + 1;
      }
      EXPECT_EQ(end, all) << "the last is kept";
    }
  }
}

TEST(SpreadEvenly, OfSome) {
  LayerSet among;
  for (uint32_t g : {0u, 3u, 4u, 9u, 70u}) among.add(g);
  EXPECT_EQ(groups_of(spread_evenly(among, 0)), (std::vector<uint32_t>{}));
  // 2 i / 5 passes 1 at i = 3 and 2 at 5.
  EXPECT_EQ(groups_of(spread_evenly(among, 2)), (std::vector<uint32_t>{4, 70}));
  EXPECT_EQ(spread_evenly(among, 5), among);
  EXPECT_TRUE(spread_evenly({}, 0).empty());
}

}  // namespace
}  // namespace kvasir
