// A learner on a thread of its own: it learns what one on the caller's thread learns, and does not keep it
// waiting.
#include "sched/beliefs/cost_beliefs.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/random.h"

namespace kvasir::test {
namespace {

TEST(CostBeliefs, AThreadLearnsTheSameAsLearningAtOnce) {
  CostModel prior;
  prior.step_s = 1e-3;
  prior.decode_row_s = 1e-3;
  CostBeliefs at_once(CostLearner(prior), CostBeliefs::Learns::kAtOnce);
  CostBeliefs thread(CostLearner(prior), CostBeliefs::Learns::kOnThread);
  CostModel a, b;
  EXPECT_TRUE(at_once.take_latest(a));
  EXPECT_TRUE(thread.take_latest(b));
  EXPECT_EQ(a, prior);
  EXPECT_EQ(b, prior);
  EXPECT_FALSE(thread.take_latest(b)) << "nothing new";
  Random random(1);
  constexpr uint64_t kSteps = 321;
  for (uint64_t i = 0; i < kSteps; ++i) {
    StepWork w;
    const auto batch = random.between(1, 9);
    for (int64_t k = 0; k < batch; ++k) w.add_decode(50);
    const double seconds = 2e-3 + 3e-3 * w.decode_rows;
    at_once.observe(w, seconds);
    thread.observe(w, seconds);
  }
  // The last batch is learnt when it is full.
  while (thread.observed() < kSteps) std::this_thread::yield();
  while (!thread.take_latest(b)) std::this_thread::yield();
  at_once.take_latest(a);
  EXPECT_EQ(a, b);
  EXPECT_EQ(thread.dropped(), 0u);
}

TEST(CostBeliefs, StepsThatComeTooFastAreDroppedAndCounted) {
  CostBeliefs beliefs(CostLearner(), CostBeliefs::Learns::kOnThread);
  StepWork w;
  w.add_decode(1);
  constexpr uint64_t kSteps = 200'000;
  for (uint64_t i = 0; i < kSteps; ++i) beliefs.observe(w, 1e-3);
  // Of those that were not dropped, all but the last that make no batch are learnt.
  const auto settled = [&] { return kSteps - beliefs.dropped() - beliefs.observed() <= 16; };
  while (!settled()) std::this_thread::yield();
  EXPECT_GT(beliefs.dropped(), 0u);
  EXPECT_GT(beliefs.observed(), 1000u);
  CostModel costs;
  EXPECT_TRUE(beliefs.take_latest(costs));
  StepWork same;
  same.add_decode(1);
  EXPECT_NEAR(costs.step_seconds(same), 1e-3, 1e-6);
}

}  // namespace
}  // namespace kvasir::test
