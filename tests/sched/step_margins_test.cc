// Margins on the time of a step, worked by hand.
#include "sched/mechanisms/step_margins.h"

#include <gtest/gtest.h>

namespace kvasir::test {
namespace {

constexpr double kBin = 1.017;  // the width of a bin

// Steps that are believed to take 10 ms, and take `ratio` times as long.
struct Machine {
  StepMargins margins;
  Nanos now = kNanosPerSecond;
  void step(double ratio, double rows = 0) {
    margins.begin(now, true);
    margins.end(now, rows, 0.01);
    now += from_seconds(0.01 * ratio);
    margins.begin(now, true);
  }
};

TEST(StepMargins, BeforeAnythingIsMeasured) {
  const StepMargins m;
  EXPECT_NEAR(m.priced(0, 0.1, 100), 1.1, 0.02);
  EXPECT_NEAR(m.priced(0, 0.1, 100, 0.2), 1.5, 0.02) << "it leaves 0.85 of the time, and 0.2 is needed";
  EXPECT_NEAR(m.priced(0, 0.5, 100, 0.3), 1.4, 0.02) << "it leaves 0.3";
  EXPECT_NEAR(m.priced(0, 0.8, 100, 0.3), 1.1, 0.02) << "even 1.1 leaves less";
  EXPECT_NEAR(m.quantile(500, 0.99), 1.1, 0.02);
  EXPECT_NEAR(m.mean(500), 1.1, 0.02);
}

TEST(StepMargins, AQuantileOfWhatWasMeasured) {
  Machine m;
  for (int i = 0; i < 5000; ++i) m.step(i % 20 == 0 ? 2 : 1.05);
  EXPECT_LE(m.margins.quantile(0, 0.94), 1.05 * kBin);
  EXPECT_GE(m.margins.quantile(0, 0.96), 2);
  EXPECT_LE(m.margins.quantile(0, 0.96), 2 * kBin);
  EXPECT_NEAR(m.margins.mean(0), 0.95 * 1.05 + 0.05 * 2, 0.03);
  EXPECT_NEAR(m.margins.quantile(100, 0.96), 1.1, 0.02) << "other steps have margins of their own";
}

// A twentieth of the steps takes twice as long. Of a request with r steps 0.95^r meet its bound with the
// margin 1.05, all with the margin 2.
TEST(StepMargins, TheLongestStepsAreAllowedForWhereThatIsWorthIt) {
  Machine m;
  for (int i = 0; i < 5000; ++i) m.step(i % 20 == 0 ? 2 : 1.05);
  // Of long outputs nearly none would be in time: 0.95^100 (1 - 0.42) is 0.003, and 1 - 0.8 is 0.2.
  EXPECT_GE(m.margins.priced(0, 0.4, 100), 2);
  // Of one step only a twentieth: 0.95 * 0.58 is 0.55, and 0.2 is less.
  EXPECT_LE(m.margins.priced(0, 0.4, 1), 1.05 * kBin);
  // Of one step, where prompts need a tenth of the time: 0.95 * 0.1, and all of 0.1.
  EXPECT_GE(m.margins.priced(0, 0.4, 1, 0.1), 2);
  // Where the margin costs nothing it is kept.
  EXPECT_GE(m.margins.priced(0, 0.01, 10), 2);
  // Where it leaves nothing of the step, those that are not in time are given up.
  EXPECT_LE(m.margins.priced(0, 0.55, 100), 1.05 * kBin);
}

TEST(StepMargins, OneDisturbanceDoesNotLastForEver) {
  Machine m;
  for (int i = 0; i < 600; ++i) m.step(1);
  m.step(4);
  EXPECT_GE(m.margins.quantile(0, 1), 4);
  EXPECT_LE(m.margins.quantile(0, 0.99), kBin);
  for (int i = 0; i < 5000; ++i) m.step(1);
  EXPECT_LE(m.margins.quantile(0, 1), kBin);
}

TEST(StepMargins, TimeWithoutAStepIsNotMeasured) {
  StepMargins m;
  const std::string before = m.save();
  m.begin(1000, true);
  m.end(1000, 0, 0);
  m.begin(5000, true);
  EXPECT_EQ(m.quantile(0, 1), StepMargins().quantile(0, 1));
  m.end(5000, 0, 0.01);
  m.begin(kNanosPerSecond, false);
  EXPECT_EQ(m.quantile(0, 1), StepMargins().quantile(0, 1)) << "nothing ran any more";
}

TEST(StepMargins, ItsStateComesBack) {
  Machine m;
  for (int i = 0; i < 50; ++i) m.step(1 + 0.01 * i, i * 30);
  m.margins.end(m.now, 70, 0.01);
  StepMargins other;
  ASSERT_TRUE(other.restore(m.margins.save()).ok());
  EXPECT_EQ(other.save(), m.margins.save());
  other.begin(m.now + from_seconds(0.03), true);
  m.margins.begin(m.now + from_seconds(0.03), true);
  EXPECT_EQ(other.save(), m.margins.save());
  EXPECT_EQ(other.restore("1 2").code(), ErrorCode::kCorrupt);
  EXPECT_EQ(other.restore("1 7 0 4 0 4 0 4 0 4 0 4 0 4 0").code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace kvasir::test
