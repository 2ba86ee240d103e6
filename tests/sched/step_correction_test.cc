#include "sched/mechanisms/step_correction.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

constexpr Nanos kMilli = 1'000'000;

// Steps that take `factor` times what they were foretold, one after the other.
void run_steps(StepCorrection& c, StepKind kind, int steps, double factor, Nanos& now) {
  for (int i = 0; i < steps; ++i) {
    c.end(now, kind, 1e-3);
    now += static_cast<Nanos>(factor * kMilli);
    c.begin(now, true);
  }
}

TEST(StepCorrection, ComesToWhatIsMeasuredOfEachKind) {
  StepCorrection c;
  Nanos now = kMilli;
  c.begin(now, true);
  EXPECT_EQ(c.factor(StepKind::kWhole), 1);
  run_steps(c, StepKind::kPartial, 100, 1.5, now);
  EXPECT_NEAR(c.factor(StepKind::kPartial), 1.5, 1e-3);
  EXPECT_EQ(c.factor(StepKind::kWhole), 1);
  run_steps(c, StepKind::kWhole, 20, 1.2, now);
  EXPECT_NEAR(c.factor(StepKind::kWhole), 1.2, 0.03);
  EXPECT_GT(c.factor(StepKind::kPartial), 1.45);
}

TEST(StepCorrection, PartialStepsAreTriedAgainSomeTime) {
  StepCorrection c;
  Nanos now = kMilli;
  run_steps(c, StepKind::kPartial, 100, 2, now);
  run_steps(c, StepKind::kWhole, 3000, 1, now);
  EXPECT_LT(c.factor(StepKind::kPartial), 1.1);
  EXPECT_GE(c.factor(StepKind::kPartial), 1);
}

TEST(StepCorrection, OneStepThatWasHeldUpCountsForLittle) {
  StepCorrection c;
  Nanos now = kMilli;
  run_steps(c, StepKind::kWhole, 1, 100'000, now);
  EXPECT_LE(c.factor(StepKind::kWhole), 1.3 + 1e-9);
  // A step without rows, or without a foretold time, says nothing.
  const double before = c.factor(StepKind::kWhole);
  c.end(now, StepKind::kWhole, 0);
  c.begin(now + 50 * kMilli, true);
  EXPECT_EQ(c.factor(StepKind::kWhole), before);
  // Nor does one behind which nothing ran.
  c.end(now, StepKind::kWhole, 1e-3);
  c.begin(now + 50 * kMilli, /*anyone_runs=*/false);
  EXPECT_EQ(c.factor(StepKind::kWhole), before);
}

TEST(StepCorrection, ItsStateComesBack) {
  StepCorrection c;
  Nanos now = kMilli;
  run_steps(c, StepKind::kPartial, 7, 1.37, now);
  c.end(now, StepKind::kPartial, 1.23456789e-3);
  StepCorrection again;
  ASSERT_TRUE(again.restore(c.save()).ok());
  c.begin(now + kMilli, true);
  again.begin(now + kMilli, true);
  EXPECT_EQ(c.factor(StepKind::kPartial), again.factor(StepKind::kPartial));
  EXPECT_FALSE(again.restore("1 0 0 0 1").ok()) << "no factor";
  EXPECT_FALSE(again.restore("1 2 3").ok());
  EXPECT_FALSE(again.restore("1 7 1 1 1").ok());
}

}  // namespace
}  // namespace kvasir
