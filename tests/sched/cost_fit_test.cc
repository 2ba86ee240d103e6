// The fit of costs: exact where nothing disturbs it, never negative, and honest about what it misses.
#include "sched/beliefs/cost_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "sched/costs.h"

namespace kvasir::test {
namespace {

// Steps as a profile has them.
std::vector<StepWork> plan() {
  std::vector<StepWork> out;
  for (double rows : {16, 64, 256, 512}) {
    for (double history : {0, 256, 1024, 4096}) {
      out.emplace_back().add_prefill(history, rows);
    }
  }
  for (int batch : {1, 2, 4, 8, 16}) {
    for (double context : {16, 256, 1024}) {
      StepWork w;
      for (int i = 0; i < batch; ++i) w.add_decode(context);
      out.push_back(w);
      w.projected_tokens = 0.5 * batch * context;
      out.push_back(w);
      w.add_prefill(0, 64);
      out.push_back(w);
    }
  }
  return out;
}

// noise: each time is off by a factor within 1 +- noise.
std::vector<StepObservation> observe(const CostModel& costs, double noise = 0, uint64_t seed = 1) {
  Random random(seed);
  std::vector<StepObservation> out;
  for (const StepWork& w : plan()) {
    out.push_back({w, costs.step_seconds(w) * (1 + noise * (2 * random.unit() - 1))});
  }
  return out;
}

TEST(CostFit, IsExactWithoutNoise) {
  CostModel fitted;
  fitted.links[0][1] = {1, 2};
  const FitError error = fit_steps(observe(truth()), fitted);
  const StepTerms want = coefficients_of(truth()), got = coefficients_of(fitted);
  for (size_t i = 0; i < kStepTerms; ++i) EXPECT_NEAR(got[i], want[i], 1e-6 * want[i]) << i;
  EXPECT_EQ(fitted.knee_rows, 0) << "there is none";
  EXPECT_LT(error.worst, 1e-7);
  EXPECT_EQ(error.observations, plan().size());
  EXPECT_EQ(fitted.links[0][1], (LinkCost{1, 2})) << "what is no step's stays";
}

// By hand: 2 of 4 experts a row, so a row reads a half, two rows three quarters, three seven eighths.
TEST(CostFit, AStepReadsTheExpertsThatItsRowsChoose) {
  CostModel costs;
  costs.step_s = 1;
  costs.decode_row_s = 0.01;
  costs.expert_share = 0.5;
  costs.experts_s = 8;
  EXPECT_DOUBLE_EQ(costs.decode_seconds(1, 0), 1 + 4 + 0.01);
  EXPECT_DOUBLE_EQ(costs.decode_seconds(2, 0), 1 + 6 + 0.02);
  EXPECT_DOUBLE_EQ(costs.decode_seconds(3, 0), 1 + 7 + 0.03);
  EXPECT_NEAR(costs.prefill_seconds(100), 9, 1e-9);
  CostModel fitted;
  fitted.expert_share = 0.5;
  EXPECT_LT(fit_steps(observe(costs), fitted).worst, 1e-6);
  EXPECT_NEAR(fitted.experts_s, 8, 1e-5);
  EXPECT_NEAR(fitted.step_s, 1, 1e-5);
  EXPECT_EQ(fitted.knee_rows, 0);
}

// By hand: up to 100 rows a step takes 1 + 0.01 a row of prefill + 0.02 a decode, and 0.1 more for each
// further one.
TEST(CostModel, RowsAboveTheKneeTakeLonger) {
  CostModel c;
  c.step_s = 1;
  c.prefill_row_s = 0.01;
  c.decode_row_s = 0.02;
  c.knee_rows = 100;
  c.above_knee_s = 0.1;
  StepWork w;
  w.prefill_rows = 80;
  w.decode_rows = 20;
  EXPECT_DOUBLE_EQ(c.step_seconds(w), 1 + 0.8 + 0.4);
  w.prefill_rows = 90;
  EXPECT_DOUBLE_EQ(c.step_seconds(w), 1 + 0.9 + 0.4 + 1);
  EXPECT_DOUBLE_EQ(c.scaled(3).step_seconds(w), 3 * 3.3);
  EXPECT_DOUBLE_EQ(c.decode_seconds(110, 0), 1 + 2.2 + 1);
}

// By hand: two rows that choose one of two experts read three quarters of them.
TEST(CostModel, ExpertsAreReadAsRowsChooseThem) {
  CostModel c;
  c.step_s = 1;
  c.decode_row_s = 0.02;
  c.expert_share = 0.5;
  c.experts_s = 8;
  EXPECT_DOUBLE_EQ(c.weights_s(2), 7);
  EXPECT_DOUBLE_EQ(c.decode_seconds(2, 0), 7.04);
  EXPECT_DOUBLE_EQ(c.weights_s(0), 1);
  EXPECT_DOUBLE_EQ(c.weights_s(), 9);
}

TEST(CostFit, FindsAKneeWhereThereIsOne) {
  CostModel costs = truth();
  costs.knee_rows = 64;
  costs.above_knee_s = 1e-3;
  CostModel fitted;
  EXPECT_LT(fit_steps(observe(costs), fitted).worst, 1e-6);
  EXPECT_EQ(fitted.knee_rows, 64);
  EXPECT_NEAR(fitted.above_knee_s, 1e-3, 1e-9);
  EXPECT_NEAR(fitted.prefill_row_s, truth().prefill_row_s, 1e-9);
  // Between two of those that are tried, the nearer one errs by little.
  costs.knee_rows = 100;
  EXPECT_LT(fit_steps(observe(costs), fitted).worst, 0.1);
  EXPECT_EQ(fitted.knee_rows, 91);
}

TEST(CostFit, NoiseIsNoKnee) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CostModel fitted;
    fit_steps(observe(truth(), 0.1, seed), fitted);
    EXPECT_EQ(fitted.above_knee_s, 0) << seed;
  }
}

TEST(CostFit, NoCoefficientIsNegative) {
  for (size_t zero = 0; zero < kStepTerms; ++zero) {
    CostModel costs = truth();
    StepTerms c = coefficients_of(costs);
    c[zero] = 0;
    set_coefficients(costs, c);
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      CostModel fitted;
      fit_steps(observe(costs, 0.1, seed), fitted);
      for (double x : coefficients_of(fitted)) EXPECT_GE(x, 0);
    }
    CostModel fitted;
    EXPECT_LT(fit_steps(observe(costs), fitted).worst, 1e-6) << zero;
  }
}

TEST(CostFit, ReportsTheErrorThatIsThere) {
  CostModel fitted;
  const FitError error = fit_steps(observe(truth(), 0.1), fitted);
  EXPECT_GT(error.mean, 0.02);
  EXPECT_LT(error.mean, 0.08);
  EXPECT_LE(error.mean, error.p95);
  EXPECT_LE(error.p95, error.worst);
  EXPECT_LT(error.worst, 0.2);
  // By hand: believed 1, 2 and 4 times of what was; |p - y| / y is 0, 1 and 3.
  CostModel ones;
  ones.step_s = 1;
  const StepWork w{1, 1, 0, 0, 0};
  const StepObservation three[] = {{w, 1}, {w, 0.5}, {w, 0.25}};
  const FitError known = error_of(ones, three);
  EXPECT_DOUBLE_EQ(known.mean, 4.0 / 3);
  EXPECT_DOUBLE_EQ(known.p95, 3);
  EXPECT_DOUBLE_EQ(known.worst, 3);
}

TEST(CostFit, WhatWasNotObservedIsNothing) {
  StepObservation only;
  only.work.add_decode(100);
  only.seconds = 0.5;
  CostModel fitted;
  fit_steps({&only, 1}, fitted);
  EXPECT_EQ(fitted.prefill_row_s, 0);
  EXPECT_EQ(fitted.projected_token_s, 0);
  EXPECT_NEAR(fitted.step_seconds(only.work), 0.5, 1e-9);
  CostModel empty = truth();
  const StepObservation nothing[] = {{StepWork{}, 1}, {only.work, 0}, {only.work, -1}};
  EXPECT_EQ(fit_steps(nothing, empty).observations, 0u);
  EXPECT_FALSE(empty.known());
}

TEST(CostFit, LinksHaveALatencyAndASpeed) {
  std::vector<TransferObservation> seen;
  for (double bytes : {4096.0, 65536.0, 1e6, 1.6e7}) seen.push_back({bytes, 30e-6 + bytes / 12e9});
  LinkCost cost;
  EXPECT_LT(fit_link(seen, cost).worst, 1e-9);
  EXPECT_NEAR(cost.latency_s, 30e-6, 1e-11);
  EXPECT_NEAR(1 / cost.seconds_per_byte, 12e9, 1e3);
  EXPECT_EQ(fit_link({}, cost).observations, 0u);
  EXPECT_EQ(cost, LinkCost{});
}

}  // namespace
}  // namespace kvasir::test
