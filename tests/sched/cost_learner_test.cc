// The learner of costs: it comes to what is true from wherever it began, keeps what is not exercised, and is
// not moved by one bad step.
#include "sched/beliefs/cost_learner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "sched/costs.h"

namespace kvasir::test {
namespace {

StepWork random_work(Random& random, bool prefills = true) {
  StepWork w;
  const auto batch = random.between(prefills ? 0 : 1, 16);
  for (int64_t i = 0; i < batch; ++i) w.add_decode(static_cast<double>(random.between(20, 2000)));
  if (prefills && (w.empty() || random.unit() < 0.4)) {
    w.add_prefill(static_cast<double>(random.between(0, 2000)), static_cast<double>(random.between(1, 256)));
  }
  return w;
}

// So many steps that take what `costs` says, give or take 5 %.
void run(CostLearner& learner, const CostModel& costs, int steps, uint64_t seed = 1, bool prefills = true) {
  Random random(seed);
  for (int i = 0; i < steps; ++i) {
    const StepWork w = random_work(random, prefills);
    learner.observe(w, costs.step_seconds(w) * (0.95 + 0.1 * random.unit()));
  }
}

// The largest relative error over steps of many kinds.
double worst(const CostModel& believed, const CostModel& costs) {
  Random random(99);
  double out = 0;
  for (int i = 0; i < 200; ++i) {
    const StepWork w = random_work(random);
    out = std::max(out, std::abs(believed.step_seconds(w) / costs.step_seconds(w) - 1));
  }
  return out;
}

TEST(CostLearner, BeginsWithNothingAndSoonKnows) {
  CostLearner learner;
  EXPECT_FALSE(learner.model().known());
  EXPECT_EQ(learner.error(), 0);
  run(learner, truth(), 1);
  EXPECT_TRUE(learner.model().known()) << "the first step is better than nothing";
  run(learner, truth(), 300);
  EXPECT_LT(worst(learner.model(), truth()), 0.06);
  EXPECT_LT(learner.error(), 0.05);
  EXPECT_EQ(learner.model().steps_seen, 301u);
}

TEST(CostLearner, WhatTheFirstStepsDoNotTellApartIsPutDownToRows) {
  CostLearner learner;
  StepWork w;
  w.add_prefill(0, 500);
  ASSERT_TRUE(learner.observe(w, 1));
  EXPECT_EQ(learner.model().step_s, 0);
  EXPECT_NEAR(learner.model().prefill_row_s, 2e-3, 1e-6);
  StepWork decode;
  decode.add_decode(500);
  ASSERT_TRUE(learner.observe(decode, 0.5));
  EXPECT_NEAR(learner.model().decode_row_s, 0.5, 0.01);
  EXPECT_NEAR(learner.model().step_s, 0, 0.01);
  // Two rows tell them apart: 400 ms and 100 ms a row.
  decode.add_decode(500);
  for (int i = 0; i < 2; ++i) learner.observe(decode, 0.6);
  EXPECT_NEAR(learner.model().step_s, 0.4, 0.02);
}

TEST(CostLearner, ComesToTheTruthFromAnywhere) {
  for (double factor : {0.01, 0.3, 3.0, 100.0}) {
    CostLearner learner(truth().scaled(factor));
    run(learner, truth(), 1500);
    EXPECT_LT(worst(learner.model(), truth()), 0.1) << factor;
  }
}

TEST(CostLearner, FollowsADeviceThatChanges) {
  CostLearner learner(truth());
  run(learner, truth(), 3000);
  run(learner, truth().scaled(2), 8000, 2);
  EXPECT_LT(worst(learner.model(), truth().scaled(2)), 0.08);
}

TEST(CostLearner, LearnsWhatRowsAboveTheKneeTake) {
  CostModel real = truth(), prior = truth();
  real.knee_rows = prior.knee_rows = 96;
  real.above_knee_s = 1.5e-3;
  prior.above_knee_s = 0.5e-3;
  CostLearner learner(prior);
  run(learner, real, 3000);
  EXPECT_NEAR(learner.model().above_knee_s, real.above_knee_s, 0.2 * real.above_knee_s);
  EXPECT_EQ(learner.model().knee_rows, 96);
  EXPECT_LT(worst(learner.model(), real), 0.06);
  CostLearner without;
  run(without, real, 300);
  EXPECT_EQ(without.model().above_knee_s, 0) << "only a profile finds one";
}

TEST(CostLearner, KeepsWhatIsNotExercised) {
  CostLearner learner(truth());
  run(learner, truth().scaled(1.5), 5000, 1, /*prefills=*/false);
  EXPECT_DOUBLE_EQ(learner.model().projected_token_s, truth().projected_token_s);
  EXPECT_DOUBLE_EQ(learner.model().prefill_row_s, truth().prefill_row_s);
  EXPECT_DOUBLE_EQ(learner.model().pair_s, truth().pair_s);
  EXPECT_GT(learner.model().decode_row_s, 1.3 * truth().decode_row_s);
}

TEST(CostLearner, CannotTellApartWhatAlwaysComesTogether) {
  CostLearner learner(truth());
  StepWork w;
  for (int i = 0; i < 8; ++i) w.add_decode(500);
  for (int i = 0; i < 2000; ++i) learner.observe(w, 2 * truth().step_seconds(w));
  EXPECT_NEAR(learner.model().step_seconds(w), 2 * truth().step_seconds(w), 0.01 * truth().step_seconds(w));
  // All three share the blame; none of them takes all of it.
  EXPECT_GT(learner.model().decode_row_s, truth().decode_row_s);
  EXPECT_GE(learner.model().step_s, truth().step_s);
  EXPECT_LT(learner.model().step_s, 4 * truth().step_s);
}

TEST(CostLearner, ABadStepIsCappedUnlessItPersists) {
  CostLearner calm(truth()), shaken(truth());
  run(calm, truth(), 400);
  run(shaken, truth(), 400);
  StepWork w;
  w.add_decode(100);
  for (int i = 0; i < 7; ++i) shaken.observe(w, 1000);
  run(shaken, truth(), 100, 3);
  run(calm, truth(), 100, 3);
  EXPECT_LT(worst(shaken.model(), calm.model()), 0.15);
  // The device has become a hundred times slower, and stays so.
  run(shaken, truth().scaled(100), 9000, 4);
  EXPECT_LT(worst(shaken.model(), truth().scaled(100)), 0.1);
}

TEST(CostLearner, RefitsNoOftenerThanAskedAndIsDeterministic) {
  CostLearnerOptions options;
  options.refit_every = 32;
  CostLearner a(truth(), options), b(truth(), options);
  Random random(1);
  int refits = 0;
  for (int i = 0; i < 320; ++i) {
    const StepWork w = random_work(random);
    const double seconds = truth().step_seconds(w) * (0.5 + random.unit());
    refits += a.observe(w, seconds);
    b.observe(w, seconds);
  }
  EXPECT_EQ(refits, 5 + 9) << "after 1, 2, 4, 8 and 16, and then every 32";
  EXPECT_EQ(a.model(), b.model());
  EXPECT_EQ(a.error(), b.error());
}

TEST(CostLearner, NonsenseIsIgnored) {
  CostLearner learner(truth());
  StepWork w;
  w.add_decode(1);
  for (double seconds : {0.0, -1.0, std::nan(""), double{INFINITY}})
    EXPECT_FALSE(learner.observe(w, seconds));
  EXPECT_FALSE(learner.observe(StepWork{}, 1));
  EXPECT_EQ(learner.model(), truth());
}

}  // namespace
}  // namespace kvasir::test
