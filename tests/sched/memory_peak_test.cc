// The peak of a batch's memory, worked by hand.
#include "sched/mechanisms/memory_peak.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"

namespace kvasir::test {
namespace {

OutputRest exactly(double steps) {
  return {steps, steps * steps, steps};
}

TEST(MemoryPeak, IsAtTheEndOfTheOneThatMattersMost) {
  MemoryPeak peak;
  EXPECT_NEAR(peak.with({100, exactly(50)}), 150, 1e-9) << "alone, at its end";
  peak.add({100, exactly(50)});
  // After 10 steps both have grown by 10; after 50 only the first is left.
  EXPECT_NEAR(peak.with({200, exactly(10)}), 100 + 200 + 2 * 10, 1e-9);
  // Both end at once.
  EXPECT_NEAR(peak.with({200, exactly(50)}), 100 + 200 + 2 * 50, 1e-9);
  // The new one ends later, and is small: the peak is at the end of the first.
  EXPECT_NEAR(peak.with({1, exactly(60)}), 100 + 1 + 2 * 50, 1e-9);
  // It ends much later: at its own end it needs the most.
  EXPECT_NEAR(peak.with({1, exactly(1000)}), 1001, 1e-9);
}

// A mean of 60 and a variance of 600: 30, 60 and 90 steps (30^2 x 2/3 = 600), each with a third. Of three
// such requests that own 100 tokens all may be there after 90 steps: 3 x 190, which is less than 190 and
// twice 190 x sqrt(2/3).
TEST(MemoryPeak, FewMayAllBeThereAtOnce) {
  const OutputRest rest = {60, 60 * 60 + 600, 30};
  MemoryPeak peak;
  for (int i = 0; i < 2; ++i) peak.add({100, rest});
  EXPECT_NEAR(peak.with({100, rest}), 190 + 2 * 190 * std::sqrt(2.0 / 3), 1e-9);
  MemoryPeak one;
  EXPECT_NEAR(one.with({100, rest}), 190, 1e-9);
}

// Of 300 two thirds are there after 60 steps, more or less sqrt(300 x 2/9) = 8.2 of them.
TEST(MemoryPeak, OfManySomeHaveEnded) {
  const OutputRest rest = {60, 60 * 60 + 600, 1};
  MemoryPeak peak;
  for (int i = 0; i < 299; ++i) peak.add({10, rest});
  EXPECT_NEAR(peak.with({10, rest}), 200 * 70 + 2 * 70 * std::sqrt(300 * 2.0 / 9), 1e-6);
}

// A variance of 60^2: c sd = 73.5, and 60 - 73.5 is below a step. It is 1, the others are 7.2 less each, and
// the mean stays. Alone a request needs its longest at the most.
TEST(MemoryPeak, NoLengthIsBelowAStep) {
  const double spread = std::sqrt(1.5 * 3600), cut = (1 - (60 - spread)) / 2;
  EXPECT_NEAR(MemoryPeak().with({0, {60, 2 * 60 * 60, 1}}), 60 + spread - cut, 1e-9);
  EXPECT_NEAR(1 + (60 - cut) + (60 + spread - cut), 3 * 60, 1e-9);
}

// A mean of 5 and a deviation of 15: the two shorter ones are a step, and the longest 13.
TEST(MemoryPeak, TheMeanStaysWhereTwoLengthsAreAStep) {
  EXPECT_NEAR(MemoryPeak().with({0, {5, 25 + 225, 1}}), 13, 1e-9);
}

TEST(MemoryPeak, CountsThoseThatEndInTime) {
  MemoryPeak peak;
  for (const double rest : {5.0, 20.0, 10.0, 10.0}) peak.add({1, exactly(rest)});
  EXPECT_NEAR(peak.ending_within(4), 0, 1e-9);
  EXPECT_NEAR(peak.ending_within(10), 3, 1e-9);
  EXPECT_NEAR(peak.ending_within(1e9), 4, 1e-9);
}

// Ends are even from 10 to 110 steps: few of those that may end at any time do so at once.
TEST(MemoryPeak, EndsThatAreSpreadComeInTurn) {
  MemoryPeak peak;
  for (int i = 0; i < 30; ++i) peak.add({1, {60, 2 * 60 * 60, 10}});
  EXPECT_NEAR(peak.ending_within(10), 0, 1e-9);
  EXPECT_NEAR(peak.ending_within(20), 3, 1e-9);
  EXPECT_NEAR(peak.ending_within(60), 15, 1e-9);
  EXPECT_NEAR(peak.ending_within(110), 30, 1e-9);
}

// Against the need at each step.
TEST(MemoryPeak, AgreesWithASimulationOfTheSteps) {
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::pair<int, int>> all;  // owned, rest
    MemoryPeak peak;
    const uint64_t count = random.below(12);
    for (uint64_t i = 0; i < count; ++i) {
      all.emplace_back(random.below(100), 1 + random.below(40));
      peak.add({static_cast<double>(all.back().first), exactly(all.back().second)});
    }
    all.emplace_back(random.below(100), 1 + random.below(40));
    int most = 0;
    for (int step = 1; step <= 40; ++step) {
      int need = 0;
      for (const auto& [owned, rest] : all) {
        if (rest >= step) need += owned + step;
      }
      most = std::max(most, need);
    }
    EXPECT_NEAR(peak.with({static_cast<double>(all.back().first), exactly(all.back().second)}), most, 1e-9);
  }
}

}  // namespace
}  // namespace kvasir::test
