// The truth about a device that was measured step by step: a sum of curves, each piecewise linear.
#pragma once

#include <vector>

#include "exec/sim/step_load.h"

namespace kvasir {

// Seconds for an amount: 0 for none, and beyond knots[i] each unit more costs slopes[i], up to the next knot;
// the last slope goes on for ever. Both lists are equally long (none: all is free), knots ascend from 0, and
// slopes are not negative.
struct TimeCurve {
  std::vector<double> knots;
  std::vector<double> slopes;

  double at(double amount) const;
  friend bool operator==(const TimeCurve&, const TimeCurve&) = default;
};

// Seconds. Rows of every kind go through the products together, so that their curve is of their number in the
// whole step; attention and the output layer have curves of their own.
struct MeasuredTables {
  double step_s = 0;       // of any step
  double chunk_s = 0;      // of each run of rows of prefill or recomputation
  double decode_s = 0;     // of each decode
  double projected_s = 0;  // of a token and layer of which K and V are made from X
  TimeCurve rows;          // in all layers; rows that pass some of them count by their share
  TimeCurve sampled;       // rows that pass the output layer
  TimeCurve pairs;         // of a row of prefill and a position that it attends to
  TimeCurve spans;         // positions whose K and V a chunk reads, history included, one chunk with another
  TimeCurve contexts;      // positions that decodes attend to, one decode with another
  // Of the engine around a step: planning, committing and publishing, for the step and for each sequence that
  // it runs.
  double engine_step_s = 0;
  double engine_sequence_s = 0;

  friend bool operator==(const MeasuredTables&, const MeasuredTables&) = default;
};

// What each coefficient of the tables is multiplied by for a load, the engine's two aside, in the order of
// coefficients(). Depends on the knots alone.
std::vector<double> measured_terms(const MeasuredTables& tables, const StepLoad& load);
// In the order of the members, each curve's slopes in a row.
std::vector<double> coefficients(const MeasuredTables& tables);
// REQUIRES: as many as coefficients() has
void set_coefficients(MeasuredTables& tables, const std::vector<double>& values);

class MeasuredTimes final : public StepTimes {
 public:
  // REQUIRES: curves are as they must be
  explicit MeasuredTimes(MeasuredTables tables);

  // The engine's share included: a simulated engine takes no time of its own.
  double seconds(const StepLoad& load) const override;
  double executor_seconds(const StepLoad& load) const;
  double engine_seconds(const StepLoad& load) const;
  const MeasuredTables& tables() const { return tables_; }

 private:
  const MeasuredTables tables_;
};

}  // namespace kvasir
