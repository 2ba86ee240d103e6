// Equation 3 of LayerKV to the letter, and the rows that fit into a time.
#include "sched/mechanisms/prefill_time.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(PublishedPrefillTime, IsTheEquationToTheLetter) {
  // 0.5 x 4 x (2 x 10 + 2 x 4 x 3) / 8 = 2 x 44 / 8.
  const PublishedPrefillTime p = {.parameters = 10, .hidden = 3, .flops_per_s = 8, .alpha = 0.5};
  EXPECT_TRUE(p.used());
  EXPECT_EQ(p.seconds(4), 11);
  EXPECT_EQ(p.seconds(0), 0);
}

TEST(PublishedPrefillTime, OfASevenBillionParametersModelOnAnL20) {
  // 512 x (2 x 6.74e9 + 2 x 512 x 4,096) = 512 x 13,484,194,304 = 6.9039e12 operations: 57.8 ms at 119.5e12
  // a second. Of 16,384 tokens the second term is 0.1342e9 in 13.614e9, and the whole 1.8666 s.
  const PublishedPrefillTime p = {.parameters = 6.74e9, .hidden = 4096, .flops_per_s = 119.5e12};
  EXPECT_NEAR(p.seconds(512), 0.05777328, 1e-8);
  EXPECT_NEAR(p.seconds(16384), 16384 * 13.614217728e9 / 119.5e12, 1e-9);
}

TEST(PublishedPrefillTime, IsNotUsedUnlessItIsGiven) {
  EXPECT_FALSE(PublishedPrefillTime{}.used());
}

// ---------------------------------------------------------------- rows within a time

// In eighths of a second, so that all sums are exact.
CostModel costs() {
  CostModel c;
  c.step_s = 1;
  c.prefill_row_s = 0.125;
  c.decode_row_s = 0.5;
  return c;
}

TEST(PrefillRowsWithin, TheMostThatEndEarlier) {
  // 1 + rows / 8 < 2: 7 rows, since eight end at 2 and not before.
  EXPECT_EQ(prefill_rows_within(costs(), {}, 2, 0, 100), 7u);
  EXPECT_EQ(prefill_rows_within(costs(), {}, 2.0625, 0, 100), 8u);
}

TEST(PrefillRowsWithin, OnBothSidesOfAKnee) {
  // 16 rows end at 3; each further one takes a quarter: 3 + x / 4 < 4 is 3 more.
  CostModel c = costs();
  c.knee_rows = 16;
  c.above_knee_s = 0.125;
  EXPECT_EQ(prefill_rows_within(c, {}, 2, 0, 100), 7u);
  EXPECT_EQ(prefill_rows_within(c, {}, 4, 0, 100), 19u);
  // Four decodes: 1 + 2 + rows / 8 below 12 rows, so 4.5 with 12; 2 more end at 5.
  StepWork decodes;
  for (int i = 0; i < 4; ++i) decodes.add_decode(0);
  EXPECT_EQ(prefill_rows_within(c, decodes, 5, 0, 100), 13u);
}

TEST(PrefillRowsWithin, AtMostWhatIsAskedFor) {
  EXPECT_EQ(prefill_rows_within(costs(), {}, 2, 0, 7), 7u);
  EXPECT_EQ(prefill_rows_within(costs(), {}, 2, 0, 5), 5u);
  EXPECT_EQ(prefill_rows_within(costs(), {}, 100, 0, 64), 64u);
  EXPECT_EQ(prefill_rows_within(costs(), {}, 100, 0, 0), 0u);
}

TEST(PrefillRowsWithin, BesideWhatIsPlanned) {
  // One decode: 1 + 0.5 + rows / 8 < 2 is 3 rows. Eight rows of another prompt: 1 + 1 + rows / 8 < 2.5 is 3.
  StepWork work;
  work.add_decode(0);
  EXPECT_EQ(prefill_rows_within(costs(), work, 2, 0, 100), 3u);
  StepWork prompt;
  prompt.add_prefill(0, 8);
  EXPECT_EQ(prefill_rows_within(costs(), prompt, 2.5, 0, 100), 3u);
}

TEST(PrefillRowsWithin, BehindAHistory) {
  // With 1/16 s a pair and a history of 4, r rows have 4 r + r (r + 1) / 2 pairs: of 2 rows 11, which end at
  // 1 + 0.25 + 0.6875 = 1.9375; of 3 rows 18, at 2.5. Without a history 4 rows have 10: 2.125; 3 have 6:
  // 1.75.
  CostModel c = costs();
  c.pair_s = 0.0625;
  EXPECT_EQ(prefill_rows_within(c, {}, 2, 4, 100), 2u);
  EXPECT_EQ(prefill_rows_within(c, {}, 2, 0, 100), 3u);
}

TEST(PrefillRowsWithin, NoneWhereNotEvenOneFits) {
  EXPECT_EQ(prefill_rows_within(costs(), {}, 1.125, 0, 100), 0u) << "one row ends at 1.125";
  EXPECT_EQ(prefill_rows_within(costs(), {}, 0, 0, 100), 0u);
  EXPECT_EQ(prefill_rows_within(costs(), {}, -3, 0, 1), 0u);
}

}  // namespace
}  // namespace kvasir
