// Rates of arrival against what the device is believed to serve; the longest step.
#include "sched/mechanisms/arrival_load.h"

#include <gtest/gtest.h>

#include "fakes/views.h"
#include "sched/mechanisms/longest_step.h"

namespace kvasir::test {
namespace {

// `count` requests, one every `gap` seconds, each seen as it comes and gone before the next.
ArrivalLoad watched(int count, double gap, uint32_t prompt = 100, uint32_t output = 50) {
  ArrivalLoad load;
  View view = make_view(400, 400);
  for (int i = 1; i <= count; ++i) {
    SeqView s = waiting_seq(static_cast<uint64_t>(i), prompt);
    s.arrival = from_seconds(1 + i * gap);
    s.predicted.output_tokens = output;
    view.now = s.arrival + 1;
    view.waiting = {s};
    load.observe(view);
    load.observe(view);  // it still waits: not counted twice
  }
  return load;
}

TEST(ArrivalLoad, TheRateOfASteadyStream) {
  EXPECT_NEAR(watched(2000, 0.1).rate(), 10, 0.1);
  EXPECT_NEAR(watched(200, 0.1).rate(), 10, 0.3) << "also before the memory is full";
  EXPECT_EQ(ArrivalLoad().rate(), 0);
}

TEST(ArrivalLoad, ByWhatTheDeviceServes) {
  const ArrivalLoad load = watched(2000, 0.1, 100, 50);
  View view = make_view(400, 400);
  view.limits.max_num_seqs = 8;
  EXPECT_EQ(load.load(view), 0) << "without costs there is no capacity";
  view.costs.step_s = 0.08;
  view.costs.prefill_row_s = 1e-3;
  view.costs.decode_row_s = 2e-3;
  // Eight at once: a prompt takes 0.1 s, each of 50 tokens an eighth of 0.08 s and 2 ms.
  EXPECT_NEAR(load.capacity(view), 1 / (0.1 + 50 * 0.012), 1e-9);
  EXPECT_NEAR(load.load(view), load.rate() * 0.7, 1e-6);
  // Reading half of 0.064 s of experts for one row; 8 rows leave 1/256 of them: 63.75 ms a step, 7.96875 a
  // token. A prompt reads no more than the decodes beside it.
  view.costs.expert_share = 0.5;
  view.costs.experts_s = 0.064;
  EXPECT_NEAR(load.capacity(view), 1 / (0.1 + 50 * (0.012 + 0.00796875)), 1e-9);
}

TEST(ArrivalLoad, MemoryBoundsTheBatch) {
  const ArrivalLoad load = watched(2000, 0.1, 100, 50);
  View view = make_view(25, 25);  // 400 tokens: 3.2 of the mean one
  view.costs.step_s = 0.08;
  EXPECT_NEAR(load.capacity(view), 1 / (50 * 0.08 / 3.2), 1e-9);
}

TEST(ArrivalLoad, ConfidenceFallsWithTheLoad) {
  ConfidenceOptions o;
  o.most = 0.9;
  o.falling = 0.5;
  EXPECT_DOUBLE_EQ(confidence_at(0, o), 0.9);
  EXPECT_DOUBLE_EQ(confidence_at(1, o), 0.6);
  EXPECT_DOUBLE_EQ(confidence_at(4, o), 0.3);
  o.most = 8;  // as the paper has it
  EXPECT_DOUBLE_EQ(confidence_at(0, o), 0.999);
  o.fixed = 0.7;
  EXPECT_DOUBLE_EQ(confidence_at(4, o), 0.7);
}

TEST(ArrivalLoad, ItsStateComesBack) {
  const ArrivalLoad load = watched(57, 0.13, 77, 33);
  ArrivalLoad other;
  ASSERT_TRUE(other.restore(load.save()).ok());
  EXPECT_EQ(other.save(), load.save());
  EXPECT_EQ(other.rate(), load.rate());
  EXPECT_EQ(other.restore("1 2 x").code(), ErrorCode::kCorrupt);
}

TEST(LongestStep, OfTheLastOnes) {
  LongestStep steps;
  Nanos now = 1000;
  const auto step = [&](Nanos takes, bool rows = true) {
    steps.begin(now, true);
    steps.end(now, rows);
    now += takes;
  };
  step(5);
  step(50);
  step(7);
  step(10'000, /*rows=*/false);
  step(1);
  steps.begin(now, true);
  EXPECT_EQ(steps.longest(), 50) << "time without rows is no step";
  now += 9000;
  steps.begin(now, false);
  EXPECT_EQ(steps.longest(), 50) << "nor is time without requests";
  LongestStep other;
  ASSERT_TRUE(other.restore(steps.save()).ok());
  EXPECT_EQ(other.longest(), 50);
  for (int i = 0; i < 600; ++i) step(3);
  EXPECT_EQ(steps.longest(), 3) << "what is long past does not count";
  EXPECT_EQ(other.restore("x").code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace kvasir::test
