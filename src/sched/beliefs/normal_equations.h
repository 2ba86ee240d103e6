// Weighted least squares with non-negative coefficients, by normal equations, for a few unknowns.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvasir {

// min over c >= 0 of the sum of weight * (row . c - target)^2. It keeps sums only, not the observations;
// scale() changes the weight of all of them. N is small: every set of non-zero unknowns is tried.
template <size_t N>
class NormalEquations {
  static_assert(N <= 8);

 public:
  using Row = std::array<double, N>;

  void add(const Row& row, double target, double weight = 1) {
    for (size_t i = 0; i < N; ++i) {
      for (size_t j = 0; j <= i; ++j) a_[i][j] += weight * row[i] * row[j];
      b_[i] += weight * row[i] * target;
    }
  }
  // Multiplies the weight of all past observations by `factor`.
  void scale(double factor) {
    for (size_t i = 0; i < N; ++i) {
      for (size_t j = 0; j <= i; ++j) a_[i][j] *= factor;
      b_[i] *= factor;
    }
  }
  NormalEquations& operator+=(const NormalEquations& o) {
    for (size_t i = 0; i < N; ++i) {
      for (size_t j = 0; j <= i; ++j) a_[i][j] += o.a_[i][j];
      b_[i] += o.b_[i];
    }
    return *this;
  }

  // The m for which m * c fits best; 0: the observations do not determine it.
  double best_multiple(const Row& c) const {
    double square = 0, product = 0;
    for (size_t i = 0; i < N; ++i) {
      product += c[i] * b_[i];
      for (size_t j = 0; j < i; ++j) square += 2 * c[i] * c[j] * a_[i][j];
      square += c[i] * c[i] * a_[i][i];
    }
    return square > 0 ? product / square : 0;
  }

  // The coefficients. One without observations is 0. If several solutions fit equally well to within
  // rounding, the one with fewer non-zero coefficients, and earlier ones.
  Row solve() const {
    // Columns are scaled to length 1: terms differ by ten powers of ten.
    Row scale{};
    for (size_t i = 0; i < N; ++i) scale[i] = a_[i][i] > 0 ? 1 / std::sqrt(a_[i][i]) : 0;
    Row best{};
    double best_value = 0;  // the value for c = 0; less is better
    for (uint32_t set = 1; set < (1u << N); ++set) {
      Row c{};
      double value = 0;
      if (!solve_set(set, scale, c, value)) continue;
      if (value < best_value - 1e-14 * std::abs(best_value)) {
        best_value = value;
        best = c;
      }
    }
    for (size_t i = 0; i < N; ++i) best[i] *= scale[i];
    return best;
  }

 private:
  // The best scaled coefficients of the unknowns in the set, by Cholesky's decomposition, and their sum of
  // squares (minus that of the targets). False: one is negative, or the unknowns cannot be distinguished.
  bool solve_set(uint32_t set, const Row& scale, Row& out, double& value) const {
    std::array<size_t, N> of{};
    size_t n = 0;
    for (size_t i = 0; i < N; ++i) {
      if ((set >> i & 1) == 0) continue;
      if (scale[i] == 0) return false;
      of[n++] = i;
    }
    std::array<Row, N> l{};
    Row y{};
    for (size_t i = 0; i < n; ++i) {
      double rest = b_[of[i]] * scale[of[i]];
      for (size_t j = 0; j <= i; ++j) {
        double sum = a_[of[i]][of[j]] * scale[of[i]] * scale[of[j]];
        for (size_t k = 0; k < j; ++k) sum -= l[i][k] * l[j][k];
        if (j < i) {
          l[i][j] = sum / l[j][j];
          rest -= l[i][j] * y[j];
        } else {
          if (!(sum > kApart)) return false;
          l[i][i] = std::sqrt(sum);
        }
      }
      y[i] = rest / l[i][i];
    }
    value = 0;
    for (size_t i = n; i-- > 0;) {
      value -= y[i] * y[i];
      double sum = y[i];
      for (size_t k = i + 1; k < n; ++k) sum -= l[k][i] * out[of[k]];
      out[of[i]] = sum / l[i][i];
      if (out[of[i]] < 0) return false;
    }
    return true;
  }

  // The least share of a column that the others must leave unexplained.
  static constexpr double kApart = 1e-11;

  std::array<Row, N> a_{};  // the lower triangle
  Row b_{};
};

}  // namespace kvasir
