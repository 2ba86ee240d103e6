#include "sched/beliefs/least_squares.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

namespace kvasir {
namespace {

constexpr double kWeightBound = 1000;
constexpr double kVarianceFloor = 0.01;  // of what it was at first

// By Cholesky's decomposition. matrix: [n][n], symmetric
bool positive_definite(std::vector<double> matrix, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k <= i; ++k) {
      double rest = matrix[i * n + k];
      for (size_t j = 0; j < k; ++j) rest -= matrix[i * n + j] * matrix[k * n + j];
      if (i == k && !(rest > 0)) return false;
      matrix[i * n + k] = i == k ? std::sqrt(rest) : rest / matrix[k * n + k];
    }
  }
  return true;
}

}  // namespace

RecursiveLeastSquares::RecursiveLeastSquares(size_t size, double variance)
    : variance_(variance), weights_(size), covariance_(size * size), gain_(size) {
  for (size_t i = 0; i < size; ++i) covariance_[i * size + i] = variance;
}

double RecursiveLeastSquares::of(std::span<const double> x) const {
  return std::inner_product(x.begin(), x.end(), weights_.begin(), 0.0);
}

void RecursiveLeastSquares::correct(std::span<const double> x, double error, double noise) {
  const size_t n = size();
  std::fill(gain_.begin(), gain_.end(), 0.0);
  for (size_t i = 0; i < n; ++i) {
    const double* row = covariance_.data() + i * n;
    for (size_t k = 0; k < n; ++k) gain_[k] += x[i] * row[k];
  }
  const double spread = std::inner_product(x.begin(), x.end(), gain_.begin(), 0.0);
  const double total = noise + std::max(0.0, spread);
  const double least = kVarianceFloor * variance_;
  for (size_t i = 0; i < n; ++i) {
    weights_[i] = std::clamp(weights_[i] + gain_[i] * error / total, -kWeightBound, kWeightBound);
    double* row = covariance_.data() + i * n;
    for (size_t k = 0; k < n; ++k) row[k] -= gain_[i] * gain_[k] / total;  // symmetric to the last bit
    // The weight is believed to wander as much as keeps its variance from falling further. A matrix with more
    // on its diagonal stays definite.
    row[i] = std::max(row[i], least);
  }
}

void RecursiveLeastSquares::save(std::string& out) const {
  const size_t n = size();
  fmt::format_to(std::back_inserter(out), "weights {}\n", n);
  for (const double w : weights_) fmt::format_to(std::back_inserter(out), "{}\n", w);
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k <= i; ++k) {
      fmt::format_to(std::back_inserter(out), "{}{}", covariance_[i * n + k], k < i ? ' ' : '\n');
    }
  }
}

bool RecursiveLeastSquares::load(TextFields& in) {
  const size_t n = size();
  uint64_t count = 0;
  RecursiveLeastSquares loaded(n, variance_);
  if (!in.word("weights") || !in.number(n, count) || count != n) return false;
  for (double& w : loaded.weights_) {
    if (!in.real(kWeightBound, w)) return false;
  }
  // Covariances cannot be larger than variances, nor these than at first (but for the floor that lifts all of
  // them).
  const double most = variance_ * static_cast<double>(std::max<size_t>(n, 1));
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k <= i; ++k) {
      double value = 0;
      if (!in.real(most, value) || (i == k && !(value > 0))) return false;
      loaded.covariance_[i * n + k] = loaded.covariance_[k * n + i] = value;
    }
  }
  if (!positive_definite(loaded.covariance_, n)) return false;
  *this = std::move(loaded);
  return true;
}

}  // namespace kvasir
