// Fits the times of a device to measured steps.
#pragma once

#include <vector>

#include "exec/sim/measured_times.h"
#include "sched/beliefs/cost_fit.h"

namespace kvasir {

struct TimedLoad {
  StepLoad load;
  double seconds = 0;  // of the executor alone
  double weight = 1;   // of its relative error
};

// Curves without values, with knots where the times of steps on a CPU were found to bend, as far as there are
// observations.
MeasuredTables tables_to_fit(const std::vector<TimedLoad>& seen);

// Finds the coefficients, none of them negative, with the least weighted squares of relative errors. Knots
// and the engine's times stay. A coefficient without observations is 0. Observations of no time are left out.
void fit_times(const std::vector<TimedLoad>& seen, MeasuredTables& tables);

// Of the executor's time.
FitError error_of(const MeasuredTables& tables, const std::vector<TimedLoad>& seen);

// The error on every fifth observation of a fit to the others.
FitError held_out_error(const std::vector<TimedLoad>& seen);

// The value of the nearest rank: 0.5 is the median. 0 for no values.
double quantile(std::vector<double> values, double share);

// How the times of steps differ from what is fitted to their load.
struct TimeNoise {
  double mean = 1;       // sum of what they took, over the sum of what was fitted
  double deviation = 0;  // of the logarithm of one over the other, by the 10th and 90th percentile
  // The 99th percentile of the ratio to its median, and what a lognormal of that deviation would have.
  double p99 = 1;
  double expected_p99 = 1;
};
TimeNoise noise_of(const MeasuredTables& tables, const std::vector<TimedLoad>& seen);

// Multiplies all times but the engine's.
void scale_times(MeasuredTables& tables, double factor);

// Between two steps of a busy engine.
struct EngineGap {
  double sequences = 0;  // that the step before it ran
  double seconds = 0;
};
// engine_step_s and engine_sequence_s, neither negative, by least squares. Gaps beyond 20 times their median
// are of an engine that waits, and are left out.
void fit_engine(const std::vector<EngineGap>& gaps, MeasuredTables& tables);

}  // namespace kvasir
