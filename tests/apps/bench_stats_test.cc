// Statistics against numbers worked by hand.
#include <gtest/gtest.h>

#include "apps/bench/stats.h"

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

TEST(Stats, IntervalOfThreeRunsByHand) {
  // Mean 4, sample deviation 2, standard error 2 / sqrt(3) = 1.1547; t of two degrees of freedom is 4.303.
  const MeanInterval interval = mean_interval({2, 4, 6});
  EXPECT_DOUBLE_EQ(interval.mean, 4);
  EXPECT_NEAR(interval.half_width, 4.9686, 1e-3);
  EXPECT_EQ(mean_interval({5}).mean, 5);
  EXPECT_EQ(mean_interval({5}).half_width, 0);
  EXPECT_EQ(mean_interval({}).mean, 0);
}

TEST(Stats, StudentsTIsThatOfTheTables) {
  EXPECT_DOUBLE_EQ(student_t975(1), 12.706);
  EXPECT_DOUBLE_EQ(student_t975(30), 2.042);
  EXPECT_NEAR(student_t975(31), 2.040, 1e-3);
  EXPECT_NEAR(student_t975(40), 2.021, 1e-3);
  EXPECT_NEAR(student_t975(120), 1.980, 1e-3);
}

}  // namespace
}  // namespace kvasir
