// Layers that are swapped in beside layers that are recomputed.
#include "sched/mechanisms/overlap_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/random.h"

namespace kvasir::test {
namespace {

TEST(OverlapSearch, TheSixAreTheOnesPublished) {
  std::set<std::pair<int, int>> six;
  for (OverlapConfig c : kPublishedOverlaps) six.insert({c.swapped, c.again});
  std::set<std::pair<int, int>> expected;
  for (int swapped = 1; swapped <= 3; ++swapped) {
    for (int again = 1; again <= 2; ++again) expected.insert({swapped, again});
  }
  EXPECT_EQ(six, expected);
  for (OverlapConfig c : kPublishedOverlaps) EXPECT_EQ(std::count(kOverlaps.begin(), kOverlaps.end(), c), 1);
  EXPECT_EQ(kOverlaps.front().again_share(), 0);
  EXPECT_EQ(kOverlaps.back().again_share(), 1);
  EXPECT_DOUBLE_EQ((OverlapConfig{3, 2}).again_share(), 0.4);
}

TEST(OverlapSearch, TheBubbleByHand) {
  // Of 40 layers 1 ms is swapped and 2 ms computed: two of the first last as long as one of the second.
  const OverlapTimes times{40, 40e-3, 80e-3};
  EXPECT_NEAR(bubble_seconds(times, {1, 1}), 1e-3, 1e-15);
  EXPECT_NEAR(bubble_seconds(times, {2, 1}), 0, 1e-15);
  EXPECT_NEAR(bubble_seconds(times, {3, 1}), 1e-3, 1e-15);
  EXPECT_NEAR(bubble_seconds(times, {1, 2}), 3e-3, 1e-15);
  EXPECT_NEAR(bubble_seconds(times, {3, 0}), 3e-3, 1e-15);
  EXPECT_NEAR(bubble_seconds({80, 40e-3, 80e-3}, {1, 1}), 0.5e-3, 1e-15);
}

TEST(OverlapSearch, TheBestByHand) {
  const auto best = [](double swap, double again) { return least_bubble({40, swap, again}); };
  EXPECT_EQ(best(1, 2), (OverlapConfig{2, 1}));
  EXPECT_EQ(best(1, 3), (OverlapConfig{3, 1}));
  EXPECT_EQ(best(1, 100),
            (OverlapConfig{3, 1}));  // the least computation that there is beside the most swapped
  EXPECT_EQ(best(2, 1), (OverlapConfig{1, 2}));
  EXPECT_EQ(best(100, 1), (OverlapConfig{1, 2}));
  EXPECT_EQ(best(2, 3), (OverlapConfig{3, 2}));
  // Of those whose times agree, and where nothing takes any time, the first.
  EXPECT_EQ(best(1, 1), (OverlapConfig{1, 1}));
  EXPECT_EQ(best(0, 0), (OverlapConfig{1, 1}));
}

TEST(OverlapSearch, NoneOfTheSixHasLess) {
  Random random(1);
  std::set<std::pair<int, int>> seen;
  for (int i = 0; i < 2000; ++i) {
    const OverlapTimes times{40, std::exp(4 * random.unit()) * 1e-3, std::exp(4 * random.unit()) * 1e-3};
    const OverlapConfig best = least_bubble(times);
    seen.insert({best.swapped, best.again});
    for (int swapped = 1; swapped <= 3; ++swapped) {
      for (int again = 1; again <= 2; ++again) {
        const double wait = std::abs(times.swap_s * swapped / 40 - times.again_s * again / 40);
        EXPECT_LE(bubble_seconds(times, best), wait * (1 + 1e-12)) << swapped << " " << again;
      }
    }
  }
  EXPECT_GE(seen.size(), 5U);  // 2 and 2 is 1 and 1 with twice the wait
}

}  // namespace
}  // namespace kvasir::test
