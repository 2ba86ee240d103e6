// The bound on what any schedule attains, worked by hand and against schedules.
#include "apps/simulate/goodput_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "apps/simulate/most_in_time.h"
#include "base/random.h"

namespace kvasir::test {
namespace {

TEST(MostInTime, TheSmallestFirstEachAsMuchAsFits) {
  // Of ten seconds two jobs of 4 take 8, and the one of 8 gets a quarter of itself.
  EXPECT_NEAR(most_in_time({{0, 10, 8}, {0, 10, 4}, {0, 10, 4}}, 10), 2.25, 1e-9);
  // Two devices have twenty.
  EXPECT_NEAR(most_in_time({{0, 10, 8}, {0, 10, 4}, {0, 10, 4}}, 10, 2), 3, 1e-9);
  EXPECT_NEAR(most_in_time({{0, std::numeric_limits<double>::infinity(), 99}}, 10), 1, 1e-9);
  EXPECT_EQ(most_in_time({}, 10), 0);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  EXPECT_EQ(most_in_time({{0, kNever, kNever}, {0, 10, kNever}}, 10), 0) << "what takes for ever";
}

TEST(MostInTime, AWindowBinds) {
  // The first has two seconds of its own for four; the second all ten.
  EXPECT_NEAR(most_in_time({{4, 6, 4}, {0, 10, 8}}, 10), 1.5, 1e-9);
  // Beside it the other has eight, and needs them.
  EXPECT_NEAR(most_in_time({{4, 6, 2}, {0, 10, 9}}, 10), 1 + 8.0 / 9, 1e-9);
}

// What the earliest due first attains of whole jobs, at any time the first of those that have come.
int by_due(std::vector<WindowJob> jobs) {
  double now = 0;
  int done = 0;
  while (!jobs.empty()) {
    auto next = jobs.end();
    double comes = std::numeric_limits<double>::infinity();
    for (auto j = jobs.begin(); j != jobs.end(); ++j) {
      comes = std::min(comes, j->from_s);
      if (j->from_s <= now && (next == jobs.end() || j->to_s < next->to_s)) next = j;
    }
    if (next == jobs.end()) {
      now = comes;
      continue;
    }
    if (now + next->device_s <= next->to_s) {
      now += next->device_s;
      ++done;
    }
    jobs.erase(next);
  }
  return done;
}

TEST(MostInTime, NoScheduleDoesMore) {
  Random random(3);
  int tight = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<WindowJob> jobs(20);
    for (WindowJob& j : jobs) {
      j.from_s = static_cast<double>(random.between(0, 40));
      j.to_s = j.from_s + static_cast<double>(random.between(2, 20));
      j.device_s = static_cast<double>(random.between(1, 8));
    }
    const double most = most_in_time(jobs, 64);
    EXPECT_GE(most + 1e-9, by_due(jobs));
    tight += most < 19.9;
  }
  EXPECT_GT(tight, 100) << "or it says nothing";
}

// Requests of 100 tokens in and 11 out, so many a second for ten seconds.
std::vector<SimulatedRequest> arrivals(int per_second, const Slo& slo) {
  std::vector<SimulatedRequest> out;
  for (int i = 0; i < 10 * per_second; ++i) {
    SimulatedRequest r;
    r.arrival = i * kNanosPerSecond / per_second;
    r.prompt_tokens = 100;
    r.output_tokens = 11;
    r.slo = slo;
    out.push_back(r);
  }
  return out;
}

BoundedDevice device() {
  BoundedDevice d;
  d.costs.step_s = 0.01;
  d.costs.prefill_row_s = 1e-4;
  d.costs.decode_row_s = 1e-3;
  d.tokens = 1055;
  d.max_num_seqs = 1000;
  return d;
}

TEST(GoodputBound, MemoryPaysForSteps) {
  // A prompt takes 10 ms, ten decodes 10, and 1,055 tokens times steps of the 1,055 that there is room for, a
  // step of 10 ms: 30 ms in all. So 33.3 of 50 a second, and those with which the last second's end.
  const double share = attainable_share(arrivals(50, {.ttft_ms = 100, .tbt_ms = 10'000}), device());
  EXPECT_EQ(share, 1) << "the last tokens have a hundred seconds";
  const double tight = attainable_share(arrivals(50, {.e2el_ms = 500}), device());
  EXPECT_NEAR(tight, 10.5 / 10 * 33.33 / 50, 0.02);
}

TEST(GoodputBound, AGapPaysForSteps) {
  BoundedDevice d = device();
  d.tokens = 1e9;
  // What decodes add counts 20 / (20 - 10) times: 10 + 20 ms.
  EXPECT_NEAR(attainable_share(arrivals(50, {.tbt_ms = 20, .e2el_ms = 500}), d), 10.5 / 10 * 33.33 / 50,
              0.02);
  EXPECT_EQ(attainable_share(arrivals(50, {.tbt_ms = 10, .e2el_ms = 500}), d), 0) << "no step is so short";
}

TEST(GoodputBound, FirstTokensAreDue) {
  BoundedDevice d = device();
  d.tokens = 1e9;
  d.costs.prefill_row_s = 4e-4;  // 40 ms a prompt: 25 of 50 a second
  EXPECT_NEAR(attainable_share(arrivals(50, {.ttft_ms = 500}), d), 10.5 / 10 * 0.5, 0.02);
  d.instances = 2;
  EXPECT_NEAR(attainable_share(arrivals(50, {.ttft_ms = 500}), d), 1, 1e-9);
}

TEST(GoodputBound, OneThatIsTooSlowAloneIsNeverInTime) {
  // The prompt takes 20 ms, each of ten decodes 11: 130 ms.
  const auto share = [](Slo slo) { return attainable_share(arrivals(1, slo), device()); };
  EXPECT_EQ(share({.e2el_ms = 130}), 1);
  EXPECT_EQ(share({.e2el_ms = 129}), 0);
  EXPECT_EQ(share({.ttft_ms = 20}), 1);
  EXPECT_EQ(share({.ttft_ms = 19}), 0);
  EXPECT_EQ(share({.tbt_ms = 11}), 1);
  EXPECT_EQ(share({.tpot_ms = 10}), 0);
}

TEST(GoodputBound, TheDeviceMayBeFasterThanBelieved) {
  // 200 us a step, 50 a row of a prompt, 20 a decode, a hundredth for a token of history.
  LinearTimes times;
  CostModel believed;
  believed.step_s = 400e-6;
  believed.prefill_row_s = 1;
  believed.decode_row_s = 20e-6;
  const CostModel least = least_costs(times, believed, 1e6);
  // One decode behind 64 tokens: 220.64 of 420 us.
  EXPECT_NEAR(least.step_s, 400e-6 * 220.64 / 420, 1e-6);
  EXPECT_NEAR(least.decode_row_s, 20e-6 * 220.64 / 420, 1e-7);
  // Nothing decodes: 200 + 50 n, of which the step has been counted with 210. So a little less than 50.
  EXPECT_NEAR(least.prefill_row_s, 50e-6 + (200 - 400 * 220.64 / 420) / 16 * 1e-6, 2e-7);
  // One row reads a quarter of 400 us of experts: a step is believed to take 400 us, and a decode 20.
  believed.step_s = 300e-6;
  believed.experts_s = 400e-6;
  believed.expert_share = 0.25;
  EXPECT_NEAR(least_costs(times, believed, 1e6).step_s / 400e-6,
              least_costs(times, believed, 1e6).decode_row_s / 20e-6, 1e-9);
}

}  // namespace
}  // namespace kvasir::test
