#include "bench/stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace kvasir {

double percentile_of_sorted(const std::vector<double>& ascending, double p) {
  KV_CHECK(p >= 0 && p <= 100, "p={}", p);
  if (ascending.empty()) return 0;
  const double rank = p / 100.0 * static_cast<double>(ascending.size() - 1);
  const size_t below = static_cast<size_t>(rank);
  if (below + 1 >= ascending.size()) return ascending.back();
  const double share = rank - static_cast<double>(below);
  return ascending[below] + (ascending[below + 1] - ascending[below]) * share;
}

Distribution describe(std::vector<double> values, const std::vector<double>& percentiles) {
  std::sort(values.begin(), values.end());
  Distribution d;
  for (double p : percentiles) d.percentiles.push_back(percentile_of_sorted(values, p));
  if (values.empty()) return d;
  const double n = static_cast<double>(values.size());
  d.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  d.median = percentile_of_sorted(values, 50);
  double squares = 0;
  for (double v : values) squares += (v - d.mean) * (v - d.mean);
  d.stddev = std::sqrt(squares / n);
  return d;
}

}  // namespace kvasir
