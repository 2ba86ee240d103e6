#include "apps/bench/stats.h"

#include <algorithm>
#include <array>
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

double student_t975(size_t freedom) {
  KV_CHECK(freedom >= 1, "freedom={}", freedom);
  constexpr std::array<double, 30> kTable = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                             2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                             2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                             2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
  if (freedom <= kTable.size()) return kTable[freedom - 1];
  // Beyond the table, the expansion around the normal quantile is exact to the third digit.
  constexpr double z = 1.959964;
  const double n = static_cast<double>(freedom);
  return z + (z * z * z + z) / (4 * n) + (5 * std::pow(z, 5) + 16 * z * z * z + 3 * z) / (96 * n * n);
}

MeanInterval mean_interval(const std::vector<double>& values) {
  MeanInterval interval;
  if (values.empty()) return interval;
  const double n = static_cast<double>(values.size());
  interval.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  if (values.size() < 2) return interval;
  double squares = 0;
  for (double v : values) squares += (v - interval.mean) * (v - interval.mean);
  interval.half_width = student_t975(values.size() - 1) * std::sqrt(squares / (n - 1) / n);
  return interval;
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
