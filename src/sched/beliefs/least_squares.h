// Linear weights by recursive least squares: each observation is weighted by its noise, and all covariances
// are kept.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "sched/beliefs/text_fields.h"

namespace kvasir {

// After n observations the weights are those of a ridge regression over all n (ridge: noise / initial
// variance), until the variances have fallen to a floor. From then on the weights are assumed to drift, and
// old observations fade. Used by one thread.
class RecursiveLeastSquares {
 public:
  // `variance`: the initial variance of each weight.
  RecursiveLeastSquares(size_t size, double variance);

  size_t size() const { return weights_.size(); }
  // w . x. REQUIRES: as many as weights
  double of(std::span<const double> x) const;
  // w . x was too small by `error`, whose variance is `noise`. Takes about 2 n^2 multiplications.
  void correct(std::span<const double> x, double error, double noise);

  void save(std::string& out) const;
  // False: save() did not write it, or wrote another number of weights.
  bool load(TextFields& in);

 private:
  double variance_;  // at first
  std::vector<double> weights_;
  std::vector<double> covariance_;  // [size][size], symmetric
  std::vector<double> gain_;        // covariance x
};

}  // namespace kvasir
