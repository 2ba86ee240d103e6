// Statistics against numbers worked by hand.
#include <gtest/gtest.h>

#include "bench/stats.h"

namespace kvasir {
namespace {

TEST(Stats, FourValuesByHand) {
  // Ranks of p in four values: 3 p / 100. 25: 0.75; 90: 2.7; 99: 2.97. Squares: 2.25 + 0.25 + 0.25 + 2.25
  // = 5.
  const Distribution d = describe({4, 1, 3, 2}, {25, 90, 99});
  EXPECT_DOUBLE_EQ(d.mean, 2.5);
  EXPECT_DOUBLE_EQ(d.median, 2.5);
  EXPECT_DOUBLE_EQ(d.stddev, 1.118033988749895);
  ASSERT_EQ(d.percentiles.size(), 3u);
  EXPECT_DOUBLE_EQ(d.percentiles[0], 1.75);
  EXPECT_DOUBLE_EQ(d.percentiles[1], 3.7);
  EXPECT_DOUBLE_EQ(d.percentiles[2], 3.97);
}

TEST(Stats, UnevenGapsAreInterpolated) {
  // Rank of 75 in {0, 10, 100}: 1.5.
  EXPECT_DOUBLE_EQ(percentile_of_sorted({0, 10, 100}, 75), 55);
  EXPECT_DOUBLE_EQ(percentile_of_sorted({0, 10, 100}, 0), 0);
  EXPECT_DOUBLE_EQ(percentile_of_sorted({0, 10, 100}, 50), 10);
  EXPECT_DOUBLE_EQ(percentile_of_sorted({0, 10, 100}, 100), 100);
}

TEST(Stats, OneValueIsEveryPercentile) {
  const Distribution d = describe({7}, {1, 99.9});
  EXPECT_DOUBLE_EQ(d.mean, 7);
  EXPECT_DOUBLE_EQ(d.median, 7);
  EXPECT_DOUBLE_EQ(d.stddev, 0);
  EXPECT_DOUBLE_EQ(d.percentiles[0], 7);
  EXPECT_DOUBLE_EQ(d.percentiles[1], 7);
}

TEST(Stats, NoValuesGiveZeros) {
  const Distribution d = describe({}, {50, 99});
  EXPECT_EQ(d.mean, 0);
  EXPECT_EQ(d.stddev, 0);
  EXPECT_EQ(d.percentiles, (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace kvasir
