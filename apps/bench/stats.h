// Mean, median, deviation and percentiles, as numpy gives them.
#pragma once

#include <vector>

namespace kvasir {

// The percentile p, in [0, 100], of ascending values, linear between the two nearest ranks (numpy's default).
// 0 for no values.
double percentile_of_sorted(const std::vector<double>& ascending, double p);

struct Distribution {
  double mean = 0;
  double median = 0;
  double stddev = 0;                // of the population: divided by n
  std::vector<double> percentiles;  // one for each that was asked for, in that order
};

// All zeros for no values. The unit is that of the values.
Distribution describe(std::vector<double> values, const std::vector<double>& percentiles);

}  // namespace kvasir
