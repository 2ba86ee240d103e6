// How many rows of prefill fit beside decodes, from step times worked by hand.
#include "engine/stall_budget.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace kvasir {
namespace {

// A step with a slice of each of these sequences, in which the slices `waits` wait for a transfer.
Step step_of(std::initializer_list<uint64_t> seqs, std::initializer_list<uint32_t> waits) {
  Step step;
  for (uint64_t id : seqs) step.slices.emplace_back().seq = SeqId{id};
  for (uint32_t slice : waits) step.waits.push_back({0, slice, TransferId{1}});
  return step;
}

TEST(AllWait, ASequenceThatNeedsNoTransferDoesNot) {
  EXPECT_TRUE(all_wait(step_of({1, 2}, {0, 1})));
  EXPECT_FALSE(all_wait(step_of({1, 2}, {0})));
  EXPECT_FALSE(all_wait(step_of({1, 2}, {1, 1})));
}

TEST(AllWait, AWaitOfOneSliceIsItsSequencesWhereverTheOthersAre) {
  EXPECT_TRUE(all_wait(step_of({1, 1}, {1})));
  EXPECT_TRUE(all_wait(step_of({1, 1}, {0})));
  EXPECT_TRUE(all_wait(step_of({1, 2, 1}, {1, 2}))) << "not only the slice before it";
  EXPECT_FALSE(all_wait(step_of({1, 2, 1}, {0, 2})));
}

TEST(StallBudget, KnowsNothingBeforeAStepWasMeasured) {
  StallBudget budget(50 * kNanosPerMilli);
  EXPECT_EQ(budget.most(), 50 * kNanosPerMilli);
  EXPECT_EQ(budget.prefill_rows(), 0u);
  budget.observe(0, 4, 10 * kNanosPerMilli);
  EXPECT_EQ(budget.prefill_rows(), 0u) << "a row of prefill was not measured yet";
}

TEST(StallBudget, WithoutABoundThereIsNone) {
  StallBudget budget(0);
  budget.observe(100, 0, 100 * kNanosPerMilli);
  EXPECT_EQ(budget.prefill_rows(), 0u);
}

TEST(StallBudget, GivesPrefillWhatDecodesLeave) {
  StallBudget budget(50 * kNanosPerMilli);
  budget.observe(100, 0, 100 * kNanosPerMilli);  // a row takes 1 ms
  EXPECT_EQ(budget.prefill_rows(), 50u);
  budget.observe(0, 8, 10 * kNanosPerMilli);
  EXPECT_EQ(budget.prefill_rows(), 40u);
  // 90 ms, of which the decodes beside them take 10: 1 ms a row as before.
  budget.observe(80, 8, 90 * kNanosPerMilli);
  EXPECT_EQ(budget.prefill_rows(), 40u);
}

TEST(StallBudget, FollowsWhatIsMeasuredByAnEighth) {
  StallBudget budget(80 * kNanosPerMilli);
  budget.observe(10, 0, 10 * kNanosPerMilli);
  budget.observe(10, 0, 90 * kNanosPerMilli);  // 9 ms a row: the mean rises from 1 to 2
  EXPECT_EQ(budget.prefill_rows(), 40u);
  for (int i = 0; i < 100; ++i) budget.observe(10, 0, 20 * kNanosPerMilli);
  EXPECT_NEAR(budget.prefill_rows(), 40u, 1u);
}

TEST(StallBudget, ARowTakesATenthOfItsShareAtLeast) {
  StallBudget budget(20 * kNanosPerMilli);
  budget.observe(0, 8, 10 * kNanosPerMilli);
  budget.observe(10, 8, 5 * kNanosPerMilli);  // faster than the decodes alone: 0.5 ms for ten rows
  EXPECT_EQ(budget.prefill_rows(), 200u);
}

TEST(StallBudget, AFewRowsAlwaysGoSoThatPromptsDoNotStarve) {
  StallBudget budget(5 * kNanosPerMilli);
  budget.observe(10, 0, 100 * kNanosPerMilli);
  EXPECT_EQ(budget.prefill_rows(), 16u);
  budget.observe(0, 8, 50 * kNanosPerMilli);
  EXPECT_EQ(budget.prefill_rows(), 16u) << "the decodes alone take longer than the budget";
}

TEST(StallBudget, AnEmptyStepSaysNothing) {
  StallBudget budget(50 * kNanosPerMilli);
  budget.observe(100, 0, 100 * kNanosPerMilli);
  budget.observe(0, 0, 40 * kNanosPerMilli);
  EXPECT_EQ(budget.prefill_rows(), 50u);
}

}  // namespace
}  // namespace kvasir
