// The TPOT as it is measured, by hand.
#include "sched/mechanisms/measured_tpot.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "fakes/views.h"

namespace kvasir::test {
namespace {

constexpr Nanos kMs = 1'000'000;

// Its first token came at `first`, its last at `last`, in ms.
SeqView timed(uint64_t id, Nanos first, Nanos last) {
  SeqView s = decoding_seq(id, 20, 30);
  s.first_token_time = first * kMs;
  s.last_token_time = last * kMs;
  return s;
}

void observe(MeasuredTpot& tpot, Nanos now, std::vector<SeqView> running, std::vector<SeqView> waiting = {}) {
  View view = make_view(50, 50);
  view.now = now * kMs;
  view.running = std::move(running);
  view.waiting = std::move(waiting);
  tpot.observe(view);
}

TEST(MeasuredTpot, UntilATokenHasComeItIsWhatIsBelieved) {
  MeasuredTpot tpot;
  EXPECT_EQ(tpot.seconds(0.04), 0.04);
  observe(tpot, 1000, {timed(1, 900, 900)});
  observe(tpot, 1040, {timed(1, 900, 900)});
  EXPECT_EQ(tpot.seconds(0.04), 0.04) << "40 ms and no token";
}

// Of three requests one gets a token in each step of 40 ms: three steps, 120 ms.
TEST(MeasuredTpot, ThoseThatWaitCount) {
  MeasuredTpot tpot;
  observe(tpot, 1000, {timed(1, 900, 1000), timed(2, 900, 900), timed(3, 900, 900)});
  observe(tpot, 1040, {timed(1, 900, 1040), timed(2, 900, 900), timed(3, 900, 900)});
  EXPECT_NEAR(tpot.seconds(0), 0.120, 1e-12) << "3 x 40 ms, 1 token";
  // What was preempted after its first token waits, too; what has no token yet does not count.
  observe(tpot, 1080, {timed(1, 900, 1080), timed(2, 900, 900)}, {timed(3, 900, 900), waiting_seq(4, 20)});
  EXPECT_NEAR(tpot.seconds(0), 0.120, 1e-12);
}

TEST(MeasuredTpot, TheFirstTokenBeginsTheTimeAndIsNotCounted) {
  MeasuredTpot tpot;
  observe(tpot, 1000, {timed(1, 900, 1000)});
  // 40 ms of the first; 10 of the second, whose first token came at 1,030: 50 ms for one token.
  observe(tpot, 1040, {timed(1, 900, 1040), timed(2, 1030, 1030)});
  EXPECT_NEAR(tpot.seconds(0), 0.050, 1e-12);
}

TEST(MeasuredTpot, WhatWasMeasuredBeforeFades) {
  MeasuredTpot tpot;
  observe(tpot, 1000, {timed(1, 900, 1000)});
  observe(tpot, 1040, {timed(1, 900, 1040)});
  observe(tpot, 1140, {timed(1, 900, 1140)});
  // (40 x 31/32 + 100) / (31/32 + 1) ms.
  EXPECT_NEAR(tpot.seconds(0), 0.13875 / 1.96875, 1e-12);
  // A plan in which no token came fades nothing.
  observe(tpot, 1160, {timed(1, 900, 1140)});
  EXPECT_NEAR(tpot.seconds(0), 0.15875 / 1.96875, 1e-12);
  observe(tpot, 1200, {});
  EXPECT_EQ(tpot.seconds(7), 7) << "none decodes: what was measured is forgotten";
}

TEST(MeasuredTpot, ItsStateIsText) {
  MeasuredTpot tpot, other;
  observe(tpot, 1000, {timed(1, 900, 1000)});
  observe(tpot, 1037, {timed(1, 900, 1037)});
  observe(tpot, 1079, {timed(1, 900, 1079)});
  ASSERT_TRUE(other.restore(tpot.save()).ok());
  EXPECT_EQ(other.save(), tpot.save());
  EXPECT_EQ(other.seconds(0), tpot.seconds(0));
  EXPECT_FALSE(other.restore("12").ok());
  EXPECT_EQ(other.save(), tpot.save()) << "and is kept if another is not one";
}

}  // namespace
}  // namespace kvasir::test
