// Measured times on tables that can be added up by hand.
#include "exec/sim/measured_times.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kvasir {
namespace {

MeasuredTables toy() {
  MeasuredTables t;
  t.step_s = 1;
  t.chunk_s = 10;
  t.decode_s = 100;
  t.projected_s = 0.5;
  t.rows = {{0, 4, 10}, {3, 2, 1}};
  t.sampled = {{0}, {7}};
  t.pairs = {{0, 10}, {0.1, 0.2}};
  t.spans = {{0}, {0.01}};
  t.contexts = {{0, 100}, {0.001, 0.002}};
  t.engine_step_s = 1000;
  t.engine_sequence_s = 2000;
  return t;
}

TEST(MeasuredTimes, CurvesBendAtTheirKnots) {
  const TimeCurve c = {{0, 4, 10}, {3, 2, 1}};
  EXPECT_DOUBLE_EQ(c.at(0), 0);
  EXPECT_DOUBLE_EQ(c.at(2), 6);
  EXPECT_DOUBLE_EQ(c.at(4), 12);
  EXPECT_DOUBLE_EQ(c.at(7), 18);
  EXPECT_DOUBLE_EQ(c.at(20), 34);
  EXPECT_DOUBLE_EQ(TimeCurve{}.at(5), 0);
}

TEST(MeasuredTimes, SumsWhatAStepDoes) {
  StepLoad load;
  load.chunks.push_back({.rows = 3, .history = 5});  // 15 + 6 = 21 pairs, a span of 8
  load.decode_rows = 2;
  load.decode_context = 150;
  load.sampled = 3;
  load.projected = 64;
  const MeasuredTimes times(toy());
  // 5 rows: 12 + 2. 21 pairs: 1 + 2.2. Contexts: 0.1 + 0.1.
  const double executor = 1 + 10 + 200 + 32 + 14 + 21 + 3.2 + 0.08 + 0.2;
  EXPECT_DOUBLE_EQ(times.executor_seconds(load), executor);
  EXPECT_DOUBLE_EQ(times.seconds(load), executor + 1000 + 3 * 2000);
}

TEST(MeasuredTimes, RowsOfSomeLayersCountByTheirShare) {
  StepLoad load;
  load.chunks.push_back({.rows = 8, .history = 0, .passed = 0.5, .attended = 0.25});
  // Half a chunk, 4 rows, 9 pairs, a span of 2.
  EXPECT_DOUBLE_EQ(MeasuredTimes(toy()).executor_seconds(load), 1 + 5 + 12 + 0.9 + 0.02);
}

TEST(MeasuredTimes, TermsTimesCoefficientsAreTheTime) {
  StepLoad load;
  load.chunks = {{.rows = 30, .history = 7}, {.rows = 1, .history = 900, .passed = 0.5, .attended = 0.5}};
  load.decode_rows = 11;
  load.decode_context = 5000;
  load.sampled = 12;
  const MeasuredTables tables = toy();
  const std::vector<double> terms = measured_terms(tables, load), values = coefficients(tables);
  ASSERT_EQ(terms.size(), values.size());
  EXPECT_NEAR(std::inner_product(terms.begin(), terms.end(), values.begin(), 0.0),
              MeasuredTimes(tables).executor_seconds(load), 1e-9);
  MeasuredTables again = toy();
  set_coefficients(again, values);
  EXPECT_EQ(again, tables);
}

}  // namespace
}  // namespace kvasir
