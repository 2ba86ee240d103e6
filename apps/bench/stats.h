// Mean, median, deviation and percentiles, as numpy gives them.
#pragma once

#include <cstddef>
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

// The mean of some runs, and how far from it the true mean is likely to be.
struct MeanInterval {
  double mean = 0;
  double half_width = 0;  // of the 95 % interval by Student's t; 0 for fewer than two values
};
MeanInterval mean_interval(const std::vector<double>& values);

// The 0.975 quantile of Student's t with so many degrees of freedom, to three digits. REQUIRES: freedom >= 1
double student_t975(size_t freedom);

// All zeros for no values. The unit is that of the values.
Distribution describe(std::vector<double> values, const std::vector<double>& percentiles);

}  // namespace kvasir
