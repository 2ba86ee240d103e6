// The peak of a batch's memory, worked by hand.
#include "sched/mechanisms/memory_peak.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace kvasir::test {
namespace {

TEST(MemoryPeak, IsAtTheEndOfTheOneThatMattersMost) {
  MemoryPeak peak;
  EXPECT_EQ(peak.with(100, 50), 150) << "alone, at its end";
  peak.add(100, 50);
  // After 10 steps both have grown by 10; after 50 only the first is left.
  EXPECT_EQ(peak.with(200, 10), 100 + 200 + 2 * 10);
  // Both end at once.
  EXPECT_EQ(peak.with(200, 50), 100 + 200 + 2 * 50);
  // The new one ends later, and is small: the peak is at the end of the first.
  EXPECT_EQ(peak.with(1, 60), 100 + 1 + 2 * 50);
  // It ends much later: at its own end it needs the most.
  EXPECT_EQ(peak.with(1, 1000), 1001);
}

TEST(MemoryPeak, CountsThoseThatEndInTime) {
  MemoryPeak peak;
  for (const double rest : {5.0, 20.0, 10.0, 10.0}) peak.add(1, rest);
  EXPECT_EQ(peak.ending_within(4), 0u);
  EXPECT_EQ(peak.ending_within(10), 3u);
  EXPECT_EQ(peak.ending_within(1e9), 4u);
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
      peak.add(all.back().first, all.back().second);
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
    EXPECT_EQ(peak.with(all.back().first, all.back().second), most);
  }
}

}  // namespace
}  // namespace kvasir::test
