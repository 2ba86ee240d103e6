// Recursive least squares against the same regression solved at once, and what it must not take from a file.
#include "sched/beliefs/least_squares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

using Vector = std::vector<double>;

double draw_normal(Random& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.unit();
  return sum;
}

// Solves a x = b by elimination with pivots.
Vector solve_by_pivots(std::vector<Vector> a, Vector b) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i) {
    size_t best = i;
    for (size_t r = i + 1; r < n; ++r) {
      if (std::abs(a[r][i]) > std::abs(a[best][i])) best = r;
    }
    std::swap(a[i], a[best]);
    std::swap(b[i], b[best]);
    for (size_t r = i + 1; r < n; ++r) {
      const double factor = a[r][i] / a[i][i];
      for (size_t c = i; c < n; ++c) a[r][c] -= factor * a[i][c];
      b[r] -= factor * b[i];
    }
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t c = i + 1; c < n; ++c) b[i] -= a[i][c] * b[c];
    b[i] /= a[i][i];
  }
  return b;
}

TEST(LeastSquares, AreThoseOfARidgeRegressionOverAllThatWasSeen) {
  constexpr size_t n = 6;
  constexpr double kVariance = 0.5, kNoise = 4;
  Random random(3);
  RecursiveLeastSquares squares(n, kVariance);
  std::vector<Vector> normal_matrix(n, Vector(n));
  Vector right(n);
  for (size_t i = 0; i < n; ++i) normal_matrix[i][i] = 1 / kVariance;
  for (int k = 0; k < 40; ++k) {
    Vector x(n);
    double y = draw_normal(random);
    for (size_t i = 0; i < n; ++i) {
      x[i] = draw_normal(random) + (i > 0 ? 0.7 * x[i - 1] : 0);  // correlated
      y += (i % 2 == 0 ? 1.5 : -0.5) * x[i];
    }
    squares.correct(x, y - squares.of(x), kNoise);
    for (size_t i = 0; i < n; ++i) {
      right[i] += x[i] * y / kNoise;
      for (size_t c = 0; c < n; ++c) normal_matrix[i][c] += x[i] * x[c] / kNoise;
    }
    const Vector expected = solve_by_pivots(normal_matrix, right);
    for (size_t i = 0; i < n; ++i) {
      Vector unit(n);
      unit[i] = 1;
      ASSERT_NEAR(squares.of(unit), expected[i], 1e-9) << "after " << k + 1;
    }
  }
}

// Or a machine that serves for a year would learn nothing in the end.
// Also where two features never vary.
TEST(LeastSquares, FollowWhatChangesAfterManyObservations) {
  constexpr size_t n = 8;
  Random random(4);
  RecursiveLeastSquares squares(n, 1);
  const auto learn = [&](int count, double weight) {
    for (int k = 0; k < count; ++k) {
      Vector x(n);
      for (size_t i = 0; i + 2 < n; ++i) x[i] = draw_normal(random);
      squares.correct(x, weight * x[0] + 0.3 * draw_normal(random) - squares.of(x), 0.09);
    }
  };
  Vector first(n);
  first[0] = 1;
  learn(20'000, 1);
  EXPECT_NEAR(squares.of(first), 1, 0.3);
  learn(200, -1);
  EXPECT_NEAR(squares.of(first), -1, 0.3);
}

TEST(LeastSquares, GoOnAsIfTheyHadNeverBeenSaved) {
  constexpr size_t n = 5;
  Random random(5);
  RecursiveLeastSquares squares(n, 1), loaded(n, 1);
  Vector x(n);
  const auto step = [&](RecursiveLeastSquares& s) { s.correct(x, x[0] - x[3] - s.of(x), 0.5); };
  for (int k = 0; k < 30; ++k) {
    for (double& e : x) e = draw_normal(random);
    step(squares);
  }
  std::string text;
  squares.save(text);
  TextFields in(text);
  ASSERT_TRUE(loaded.load(in) && in.at_end());
  step(squares);
  step(loaded);
  EXPECT_EQ(squares.of(x), loaded.of(x));
}

TEST(LeastSquares, TakeNothingThatTheyHaveNotSaved) {
  RecursiveLeastSquares squares(2, 1);
  for (const std::string text :
       {"", "weights 2\n1\n", "weights 3\n1\n1\n1\n1\n0 1\n0 0 1\n", "weights 2\n1\n1\n1\n0 0\n",
        "weights 2\n1\n1\n-1\n0 1\n", "weights 2\n1\nnan\n1\n0 1\n", "weights 2\n1\n1e9\n1\n0 1\n",
        "weights 2\n1\n1\n1\n1e9 1\n", "weights 2\n1\n1\n1\n1.5 1\n"}) {
    TextFields in(text);
    EXPECT_FALSE(squares.load(in)) << text;
  }
  const std::string right = "weights 2\n1\n1\n1\n0 1\n";
  TextFields in(right);
  EXPECT_TRUE(squares.load(in));
}

}  // namespace
}  // namespace kvasir
