// The true time of a step on a device that was measured step by step: a sum of piecewise linear curves.
#pragma once

#include <vector>

#include "exec/sim/step_load.h"

namespace kvasir {

// Seconds for an amount: 0 for none; each unit beyond knots[i] costs slopes[i], up to the next knot, and the
// last slope has no end. Both lists are equally long (empty: all is free), knots ascend from 0, and slopes
// are not negative.
struct TimeCurve {
  std::vector<double> knots;
  std::vector<double> slopes;

  double at(double amount) const;
  friend bool operator==(const TimeCurve&, const TimeCurve&) = default;
};

// Seconds. Rows of every kind go through the products together, so their curve is over the number of rows in
// the whole step. Attention and the output layer have curves of their own.
struct MeasuredTables {
  double step_s = 0;       // of any step
  double chunk_s = 0;      // of each run of rows of prefill or recomputation
  double decode_s = 0;     // of each decode
  double projected_s = 0;  // of a token and layer of which K and V are made from X
  TimeCurve rows;          // in all layers; rows that pass some of them count by their share
  TimeCurve sampled;       // rows that pass the output layer
  TimeCurve pairs;         // of a row of prefill and a position that it attends to
  TimeCurve spans;         // positions whose K and V the chunks read, including history, in all
  TimeCurve contexts;      // positions that the decodes attend to, in all
  // The engine's time for planning, committing and publishing: for the step, and for each sequence that it
  // runs.
  double engine_step_s = 0;
  double engine_sequence_s = 0;

  friend bool operator==(const MeasuredTables&, const MeasuredTables&) = default;
};

// The factors of a load for the coefficients of the tables, without the engine's two, in the order of
// coefficients(). Depends on the knots only.
std::vector<double> measured_terms(const MeasuredTables& tables, const StepLoad& load);
// In the order of the members, each curve's slopes in a row.
std::vector<double> coefficients(const MeasuredTables& tables);
// REQUIRES: as many as coefficients() has
void set_coefficients(MeasuredTables& tables, const std::vector<double>& values);

class MeasuredTimes final : public StepTimes {
 public:
  // REQUIRES: the curves are valid (TimeCurve)
  explicit MeasuredTimes(MeasuredTables tables);

  // Including the engine's share: a simulated engine takes no time of its own.
  double seconds(const StepLoad& load) const override;
  double executor_seconds(const StepLoad& load) const;
  double engine_seconds(const StepLoad& load) const;
  const MeasuredTables& tables() const { return tables_; }

 private:
  const MeasuredTables tables_;
};

}  // namespace kvasir
