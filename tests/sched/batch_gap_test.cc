// Which batches leave gaps short enough, and which gaps are worth that; worked by hand.
#include "sched/mechanisms/batch_gap.h"

#include <gtest/gtest.h>

#include <cmath>

#include "fakes/views.h"
#include "sched/mechanisms/worthwhile_gap.h"

namespace kvasir::test {
namespace {

constexpr Slo kTight{.tbt_ms = 20}, kLoose{.tbt_ms = 100}, kMean{.tpot_ms = 20};

// A step takes 8 ms and 0.1 ms a row.
CostModel gap_costs() {
  CostModel c;
  c.step_s = 0.008;
  c.decode_row_s = 1e-4;
  return c;
}

// All steps take as long as believed.
StepMargins exact_margins() {
  StepMargins m;
  for (int i = 0; i < 6000; ++i) {
    m.begin(from_seconds(1 + 0.01 * i), true);
    m.end(from_seconds(1 + 0.01 * i), 0, 0.01);
  }
  return m;
}

int most_that_fit(const Slo* slo, const BatchGapOptions& options, int loose = 0) {
  const CostModel c = gap_costs();
  const StepMargins m = exact_margins();
  BatchGap batch(c, m, options);
  for (int i = 0; i < loose; ++i) batch.add(SeqId{1}, 100, &kLoose);
  int n = 0;
  for (; n < 1000 && !batch.exceeded_with(SeqId{2}, 100, slo); ++n) batch.add(SeqId{2}, 100, slo);
  return n;
}

TEST(BatchGap, AsManyAsAStepHasRoomFor) {
  // (20 - 8) / 0.1; the margin of exact steps is that of a bin, within 1.7 %.
  EXPECT_NEAR(most_that_fit(&kTight, {}), 118, 2);
  EXPECT_NEAR(most_that_fit(&kMean, {}), 118, 2);
}

TEST(BatchGap, OneWithALongerGapCountsInFull) {
  EXPECT_NEAR(most_that_fit(&kTight, {}, 100), 18, 2);
}

TEST(BatchGap, WithoutABoundAndLate) {
  EXPECT_EQ(most_that_fit(nullptr, {}), 1000) << "nothing bounds them";
  EXPECT_NEAR(most_that_fit(nullptr, {.otherwise_s = 0.05}), 415, 10);
  constexpr Slo kNone{};
  EXPECT_NEAR(most_that_fit(&kNone, {.otherwise_s = 0.05}), 415, 10);
}

TEST(BatchGap, NoRequestFitsAnUnreachableGap) {
  constexpr Slo kUnreachable{.tbt_ms = 5};
  EXPECT_EQ(most_that_fit(&kUnreachable, {}), 0);
}

// ---------------------------------------------------------------- the gaps that are worth it

// Each second for a minute so many requests of 100 tokens in and 200 out.
ArrivingWork arriving_for_a_minute(int tight, int loose) {
  ArrivingWork work;
  View view = make_view(1000, 1000);
  uint64_t id = 0;
  for (int second = 1; second <= 60; ++second) {
    view.waiting.clear();
    view.now = second * kNanosPerSecond;
    for (int i = 0; i < tight + loose; ++i) {
      SeqView s = waiting_seq(++id, 100);
      s.arrival = view.now;
      s.slo = i < tight ? kTight : kLoose;
      s.predicted.output_tokens = 200;
      view.waiting.push_back(s);
    }
    work.observe(view);
    work.observe(view);  // they still wait: not counted twice
  }
  return work;
}

double worth(int tight, int loose, double kept = 0) {
  const CostModel c = gap_costs();
  return worthwhile_gap(arriving_for_a_minute(tight, loose), c, exact_margins(),
                        {.tokens = 1e6, .max_num_seqs = 1000, .otherwise_s = 0.2}, kept);
}

TEST(ArrivingWork, TheRatesOfASteadyStream) {
  const ArrivingWork work = arriving_for_a_minute(3, 7);
  ASSERT_EQ(work.classes().size(), 2u);
  EXPECT_EQ(work.classes()[0].gap_s, 0.02);
  EXPECT_NEAR(work.classes()[0].requests / work.seconds(), 3, 0.1);
  EXPECT_NEAR(work.classes()[1].output_tokens / work.seconds(), 1400, 50);
  EXPECT_NEAR(work.classes()[1].prompt_tokens / work.seconds(), 700, 30);
  EXPECT_NEAR(work.prompt_tokens_per_s(), 1000, 40);
  ArrivingWork other;
  ASSERT_TRUE(other.restore(work.save()).ok());
  EXPECT_EQ(other.save(), work.save());
  EXPECT_EQ(other.restore("1 2").code(), ErrorCode::kCorrupt);
  EXPECT_EQ(other.restore("1 2 3 4 x").code(), ErrorCode::kCorrupt);
}

// Of steps of 20 ms 118 rows come, 5,900 tokens a second; of 100 ms 903 rows, 9,030 a second.
TEST(WorthwhileGap, AllAreKeptWhileThereIsRoomForAll) {
  EXPECT_EQ(worth(5, 20), 0) << "5,000 tokens a second";
}

TEST(WorthwhileGap, AFewTightOnesAreGivenUpWhereTheyCostTheOthersMore) {
  // 12,000 tokens a second: with all kept 0.49 of the requests are in time; without the sixth that is tight
  // 10,000 are needed, and 0.9 of these are in time: 0.75.
  EXPECT_EQ(worth(10, 50), 0.1);
}

TEST(WorthwhileGap, ManyTightOnesAreKept) {
  // With all kept 0.49 again; of the sixth that is loose all are in time, but they are a sixth.
  EXPECT_EQ(worth(50, 10), 0);
}

TEST(WorthwhileGap, ALittleMoreIsNoReasonToChange) {
  // All kept: 5,900 of 8,000, 0.73; without the quarter that is tight 0.75.
  EXPECT_EQ(worth(10, 30, 0), 0);
  EXPECT_EQ(worth(10, 30, 0.1), 0.1);
}

TEST(WorthwhileGap, OneThatCannotBeKeptIsGivenUp) {
  CostModel c = gap_costs();
  c.step_s = 0.03;
  EXPECT_EQ(worthwhile_gap(arriving_for_a_minute(1, 1), c, exact_margins(), {1e6, 1000, 4}, 0), 0.1);
}

TEST(WorthwhileGap, NoneIsWorthItThatCannotBeKept) {
  CostModel slow = gap_costs();
  slow.step_s = 1;
  EXPECT_TRUE(
      std::isinf(worthwhile_gap(arriving_for_a_minute(1, 1), slow, exact_margins(), {1e6, 1000, 4}, 0)));
  EXPECT_EQ(worthwhile_gap(arriving_for_a_minute(1, 1), CostModel{}, exact_margins(), {1e6, 1000, 4}, 0), 0)
      << "nothing is known";
  EXPECT_EQ(worthwhile_gap(ArrivingWork(), gap_costs(), exact_margins(), {1e6, 1000, 4}, 0), 0);
}

}  // namespace
}  // namespace kvasir::test
