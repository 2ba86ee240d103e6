#include "sched/mechanisms/cost_scale.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

// Steps that are believed to take 1 ms and take `ms`. Returns how often the factor changed.
int run(CostScale& scale, Nanos& now, int steps, double ms) {
  int changes = 0;
  for (int i = 0; i < steps; ++i) {
    scale.end(now, 1e-3);
    now += static_cast<Nanos>(ms * 1e6);
    changes += scale.begin(now, true, 7) ? 1 : 0;
  }
  return changes;
}

TEST(CostScale, IsOneUnlessStepsAreWrongByMoreThanFour) {
  CostScale scale;
  Nanos now = 1;
  EXPECT_EQ(run(scale, now, 200, 3.9), 0);
  EXPECT_EQ(run(scale, now, 200, 0.26), 0);
  EXPECT_EQ(scale.factor(), 1);
}

TEST(CostScale, TakesWhatHasBeenMeasured) {
  CostScale scale;
  Nanos now = 1;
  // The sum of 8 steps whose weights fall by a 64th is 7.6, of 9 it is 8.5.
  EXPECT_EQ(run(scale, now, 8, 100), 0);
  EXPECT_EQ(run(scale, now, 1, 100), 1);
  EXPECT_NEAR(scale.factor(), 100, 1e-9);
  EXPECT_EQ(run(scale, now, 100, 130), 0) << "still right within a factor of 4";
  // Long after, steps are as they were believed to be.
  EXPECT_GT(run(scale, now, 1000, 1), 0);
  EXPECT_LT(scale.factor(), 4);
  CostScale slow;
  run(slow, now, 20, 0.01);
  EXPECT_NEAR(slow.factor(), 0.01, 1e-9);
}

TEST(CostScale, MeasuresStepsOnly) {
  CostScale scale;
  Nanos now = 1;
  for (int i = 0; i < 100; ++i) {
    scale.end(now, 0);
    now += kNanosPerSecond;
    EXPECT_FALSE(scale.begin(now, true, 7)) << "without rows";
    scale.end(now, 1e-3);
    now += kNanosPerSecond;
    EXPECT_FALSE(scale.begin(now, false, 7)) << "nothing runs";
  }
}

TEST(CostScale, LeavesBeliefsAloneThatHaveLearnt) {
  CostScale scale;
  Nanos now = 1;
  EXPECT_FALSE(scale.begin(now, true, 100));
  for (uint64_t step = 101; step < 500; ++step) {
    scale.end(now, 1e-3);
    now += kNanosPerSecond;
    scale.begin(now, true, step);
    EXPECT_EQ(scale.factor() == 1, step < 109 || step >= 356) << step;
  }
}

TEST(CostScale, IsSavedAndRestored) {
  CostScale scale, read;
  Nanos now = 1;
  run(scale, now, 20, 50);
  ASSERT_TRUE(read.restore(scale.save()).ok());
  EXPECT_EQ(read.save(), scale.save());
  EXPECT_EQ(run(read, now, 40, 7), run(scale, now, 40, 7));
  EXPECT_EQ(read.factor(), scale.factor());
  EXPECT_FALSE(read.restore("1 2 3 4 5 0 7").ok());
  EXPECT_FALSE(read.restore("1 2").ok());
}

}  // namespace
}  // namespace kvasir
