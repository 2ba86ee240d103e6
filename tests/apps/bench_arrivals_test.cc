// Arrival times: the distribution, the rate, and that the seed alone decides them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "apps/bench/arrivals.h"
#include "base/draws.h"

namespace kvasir {
namespace {

constexpr int kDraws = 40000;

struct Moments {
  double mean = 0;
  double variance = 0;
};

Moments moments(double shape) {
  Moments m;
  for (int i = 0; i < kDraws; ++i) {
    const double x = gamma_draw(shape, 11, static_cast<uint64_t>(i));
    EXPECT_GE(x, 0);
    m.mean += x / kDraws;
    m.variance += x * x / kDraws;
  }
  m.variance -= m.mean * m.mean;
  return m;
}

TEST(Arrivals, GammaHasItsMeanAndVariance) {
  for (double shape : {0.25, 0.5, 1.0, 2.0, 10.0}) {
    const Moments m = moments(shape);
    // Four standard errors: of the mean sqrt(shape / n), of the variance about shape sqrt((2 + 6 / shape) /
    // n).
    EXPECT_NEAR(m.mean, shape, 4 * std::sqrt(shape / kDraws)) << shape;
    EXPECT_NEAR(m.variance, shape, 4 * shape * std::sqrt((2 + 6 / shape) / kDraws)) << shape;
  }
}

TEST(Arrivals, ShapeOneIsExponential) {
  // P(x > 1) = 1/e; P(x > 3) = 1/e^3.
  int above_one = 0;
  int above_three = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = gamma_draw(1, 5, static_cast<uint64_t>(i));
    above_one += x > 1;
    above_three += x > 3;
  }
  EXPECT_NEAR(above_one / static_cast<double>(kDraws), 0.36788, 0.01);
  EXPECT_NEAR(above_three / static_cast<double>(kDraws), 0.04979, 0.005);
}

TEST(Arrivals, AscendAndEndAtTheAskedRate) {
  for (double burstiness : {0.5, 1.0, 4.0}) {
    const std::vector<Nanos> arrivals = draw_arrivals(1000, 50, burstiness, 3);
    ASSERT_EQ(arrivals.size(), 1000u);
    EXPECT_TRUE(std::is_sorted(arrivals.begin(), arrivals.end()));
    EXPECT_GE(arrivals.front(), 0);
    EXPECT_NEAR(to_seconds(arrivals.back()), 20.0, 1e-6);
  }
}

TEST(Arrivals, BurstinessIsTheShapeOfTheGaps) {
  // The squared coefficient of variation of a gamma's draws is 1 / shape.
  for (double burstiness : {0.25, 1.0, 8.0}) {
    const std::vector<Nanos> arrivals = draw_arrivals(20000, 100, burstiness, 9);
    double mean = 0;
    double square = 0;
    Nanos before = 0;
    for (Nanos at : arrivals) {
      const double gap = to_seconds(at - before);
      before = at;
      mean += gap / 20000;
      square += gap * gap / 20000;
    }
    EXPECT_NEAR((square - mean * mean) / (mean * mean) * burstiness, 1.0, 0.1) << burstiness;
  }
}

TEST(Arrivals, AnInfiniteRateIsAllAtOnce) {
  EXPECT_EQ(draw_arrivals(3, std::numeric_limits<double>::infinity(), 1, 0), (std::vector<Nanos>{0, 0, 0}));
  EXPECT_TRUE(draw_arrivals(0, 10, 1, 0).empty());
}

TEST(Arrivals, TheSeedAloneDecides) {
  EXPECT_EQ(draw_arrivals(100, 10, 0.7, 1), draw_arrivals(100, 10, 0.7, 1));
  EXPECT_NE(draw_arrivals(100, 10, 0.7, 1), draw_arrivals(100, 10, 0.7, 2));
  EXPECT_EQ(gamma_draw(0.7, 1, 5), gamma_draw(0.7, 1, 5));
  EXPECT_NE(gamma_draw(0.7, 1, 5), gamma_draw(0.7, 1, 6));
}

TEST(Arrivals, AVanishingShapeStillEndsAtTheRate) {
  const std::vector<Nanos> arrivals = draw_arrivals(10, 5, 1e-9, 0);
  EXPECT_TRUE(std::is_sorted(arrivals.begin(), arrivals.end()));
  EXPECT_NEAR(to_seconds(arrivals.back()), 2.0, 1e-6);
}

}  // namespace
}  // namespace kvasir
