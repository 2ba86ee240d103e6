// What a request costs, and how shortages make prices, worked by hand.
#include "sched/mechanisms/device_prices.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sched/mechanisms/late_credit.h"
#include "sched/mechanisms/stretch.h"

namespace kvasir::test {
namespace {

CostModel priced_costs() {
  CostModel c;
  c.step_s = 0.02;
  c.prefill_row_s = 1e-4;
  c.pair_s = 1e-7;
  c.decode_row_s = 1e-3;
  c.context_s = 1e-6;
  return c;
}

RequestWork priced_work() {
  RequestWork w;
  w.steps = 10;
  w.token_steps = 5000;
  w.prefill.add_prefill(0, 400);  // 80,200 pairs
  w.link_s = 0.5;
  return w;
}

TEST(DevicePrices, WithoutAShortageOnlyWhatItAdds) {
  const DevicePrices none;
  EXPECT_NEAR(none.finish_s(priced_costs(), priced_work()), 0.005 + 0.01 + 0.04802, 1e-9);
}

TEST(DevicePrices, WhatIsScarcePaysForTheStep) {
  Shortages s;
  for (int i = 0; i < 64; ++i) s.observe(Refusal::kMemory);
  EXPECT_NEAR(s.memory(), 0.5, 1e-9) << "half of the weight is on the last 64 plans";
  for (int i = 0; i < 64; ++i) s.observe(Refusal::kSlots);
  EXPECT_NEAR(s.memory(), 0.25, 1e-9);
  EXPECT_NEAR(s.slots(), 0.5, 1e-9);
  const DevicePrices p = s.prices(priced_costs(), 10'000, 50);
  EXPECT_NEAR(p.memory, 0.25 * 0.02 / 10'000, 1e-15);
  EXPECT_NEAR(p.slot, 0.5 * 0.02 / 50, 1e-12);
  // (5e-7 + 1e-6) 5000 + (2e-4 + 1e-3) 10 + 0.04802
  EXPECT_NEAR(p.finish_s(priced_costs(), priced_work()), 0.0075 + 0.012 + 0.04802, 1e-9);
  // All experts are read: 0.05 s a step.
  CostModel experts = priced_costs();
  experts.expert_share = 0.25;
  experts.experts_s = 0.03;
  EXPECT_NEAR(s.prices(experts, 10'000, 50).memory, 0.25 * 0.05 / 10'000, 1e-15);
  EXPECT_NEAR(s.prices(experts, 10'000, 50).slot, 0.5 * 0.05 / 50, 1e-12);
  for (int i = 0; i < 1000; ++i) s.observe(Refusal::kTime);
  EXPECT_LT(s.memory() + s.slots(), 1e-4);
}

TEST(DevicePrices, TheStateComesBack) {
  Shortages s;
  for (int i = 0; i < 10; ++i) s.observe(i % 3 == 0 ? Refusal::kMemory : Refusal::kSlots);
  Shortages other;
  ASSERT_TRUE(other.restore(s.save()).ok());
  EXPECT_EQ(other.save(), s.save());
  EXPECT_EQ(other.restore("0.5 1.5").code(), ErrorCode::kCorrupt);
  EXPECT_EQ(other.restore("0.5").code(), ErrorCode::kCorrupt);
}

// ---------------------------------------------------------------- late credit

TEST(LateCredit, AFiftiethOfTheTimeWhileOneWaits) {
  LateCredit credit;
  credit.earn(kNanosPerSecond, 3);
  credit.earn(51 * kNanosPerSecond, 3);  // fifty seconds: one of credit
  EXPECT_TRUE(credit.covers(0.999));
  EXPECT_FALSE(credit.covers(1.001));
  credit.spend(SeqId{7}, 0.75);
  EXPECT_EQ(credit.turn_of(SeqId{7}), 1u);
  EXPECT_EQ(credit.turn_of(SeqId{6}), 0u);
  EXPECT_FALSE(credit.covers(0.3));
  credit.earn(1000 * kNanosPerSecond, 3);
  EXPECT_TRUE(credit.covers(3));
  EXPECT_FALSE(credit.covers(3.001)) << "never more than the greatest that waits";
  credit.earn(1001 * kNanosPerSecond, 0);
  EXPECT_FALSE(credit.covers(0.001)) << "a quiet time buys nothing";
}

TEST(LateCredit, ATurnLastsUntilItIsTaken) {
  LateCredit credit;
  credit.earn(kNanosPerSecond, 3);
  credit.earn(101 * kNanosPerSecond, 3);  // two seconds of credit
  EXPECT_FALSE(credit.has_turn(SeqId{7}, 2.5));
  EXPECT_TRUE(credit.has_turn(SeqId{7}, 1.9));
  EXPECT_TRUE(credit.has_turn(SeqId{7}, 2.5)) << "also if its cost has grown";
  credit.spend(SeqId{7}, 2.5);
  // Half a second is missing: 25 s at a fiftieth.
  credit.earn(125 * kNanosPerSecond, 3);
  EXPECT_FALSE(credit.has_turn(SeqId{8}, 0));
  credit.earn(131 * kNanosPerSecond, 3);
  EXPECT_FALSE(credit.has_turn(SeqId{8}, 0.11));
  EXPECT_TRUE(credit.has_turn(SeqId{8}, 0.09));
}

TEST(LateCredit, WhatCostsMoreThanWasBelievedIsPaidToo) {
  LateCredit credit;
  credit.earn(kNanosPerSecond, 9);
  credit.earn(151 * kNanosPerSecond, 9);  // three seconds of credit
  credit.spend(SeqId{7}, 1);
  credit.note_cost(SeqId{7}, 0.5);  // it gets on
  EXPECT_TRUE(credit.covers(1.999));
  credit.note_cost(SeqId{7}, 2);  // and outlives its prediction
  EXPECT_FALSE(credit.covers(0.501));
  EXPECT_TRUE(credit.covers(0.499));
  credit.note_cost(SeqId{7}, 3.5);
  EXPECT_FALSE(credit.covers(0)) << "a debt";
  credit.note_cost(SeqId{8}, 100);  // not on credit
  credit.earn(152 * kNanosPerSecond, 0);
  EXPECT_FALSE(credit.covers(0));
  credit.earn(2000 * kNanosPerSecond, 0);
  EXPECT_TRUE(credit.covers(0)) << "is paid back also while none waits";
  EXPECT_FALSE(credit.covers(0.001));
}

TEST(LateCredit, TurnsKeepTheirOrder) {
  LateCredit credit;
  credit.spend(SeqId{9}, 1);
  credit.spend(SeqId{3}, 1);
  credit.spend(SeqId{9}, 1);  // preempted, and back again
  EXPECT_EQ(credit.turn_of(SeqId{9}), 1u);
  EXPECT_EQ(credit.turn_of(SeqId{3}), 2u);
  credit.earn(kNanosPerSecond, 9);
  credit.earn(101 * kNanosPerSecond, 9);
  EXPECT_TRUE(credit.covers(0)) << "two were paid for, not three";
}

TEST(LateCredit, ForgetsRequestsThatHaveEndedAndComesBack) {
  LateCredit credit;
  for (uint64_t id : {9, 3, 5, 3}) credit.spend(SeqId{id}, 1);
  credit.keep_only({3, 4, 9});
  EXPECT_EQ(credit.turn_of(SeqId{5}), 0u);
  EXPECT_TRUE(credit.turn_of(SeqId{3}) == 2 && credit.turn_of(SeqId{9}) == 1);
  LateCredit other;
  ASSERT_TRUE(other.restore(credit.save()).ok());
  EXPECT_EQ(other.save(), credit.save());
  EXPECT_EQ(other.turn_of(SeqId{9}), 1u);
  EXPECT_TRUE(other.restore(LateCredit().save()).ok());
  EXPECT_FALSE(other.any());
  EXPECT_EQ(other.restore("1 x").code(), ErrorCode::kCorrupt);
  EXPECT_EQ(other.restore("1 0 0 2 9 1 0 3 2 0").code(), ErrorCode::kCorrupt) << "not ascending";
  EXPECT_EQ(other.restore("1 0 0 1 9 2 0").code(), ErrorCode::kCorrupt) << "more turns than there were";
}

// ---------------------------------------------------------------- stretch

TEST(Stretch, DoublesUntilAllAreInTimeAndFallsAfterAQuietTime) {
  Stretch s;
  s.observe(false, 64);
  EXPECT_EQ(s.factor(), 1);
  for (int i = 0; i < 3; ++i) s.observe(true, 64);
  EXPECT_EQ(s.factor(), 8);
  for (int i = 0; i < 255; ++i) s.observe(false, 64);
  EXPECT_EQ(s.factor(), 8);
  s.observe(false, 64);
  EXPECT_EQ(s.factor(), 4);
  for (int i = 0; i < 20; ++i) s.observe(true, 64);
  EXPECT_EQ(s.factor(), 64) << "no more than the most";
  Stretch other;
  ASSERT_TRUE(other.restore(s.save()).ok());
  EXPECT_EQ(other.save(), s.save());
  EXPECT_EQ(other.restore("0 0").code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace kvasir::test
