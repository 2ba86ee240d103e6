// The shares when all together want more than there is.
#include "sched/mechanisms/share_excess.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

using Shares = std::vector<uint32_t>;

TEST(ShareExcess, AllGetEverythingIfThereIsEnough) {
  EXPECT_EQ(share_excess({{10, 2, 1}, {20, 4, 3}}, 30), (Shares{10, 20}));
  EXPECT_EQ(share_excess({}, 5), Shares{});
}

TEST(ShareExcess, TheExcessIsCutByWeight) {
  // 8 too many: 2 of the first, 6 of the second.
  EXPECT_EQ(share_excess({{10, 2, 1}, {20, 4, 3}}, 22), (Shares{8, 14}));
  EXPECT_EQ(share_excess({{10, 0, 0}, {20, 4, 3}}, 22), (Shares{10, 12})) << "no slack, no cut";
  EXPECT_EQ(share_excess({{10, 0, 0}, {10, 0, 0}}, 10), (Shares{5, 5}));
}

TEST(ShareExcess, WhatOneCannotBeCutByTheOthersAre) {
  // 12 too many; by weight 9 of the first, of which only 2 can be had.
  EXPECT_EQ(share_excess({{10, 8, 3}, {20, 0, 1}}, 18), (Shares{8, 10}));
  EXPECT_EQ(share_excess({{10, 8, 3}, {20, 5, 1}}, 10), (Shares{8, 5})) << "the least in any case";
}

// A_i = A' w_i / sum w with w_i = (RT_i / sum RT) (s_i / sum s): RT of 1, 2 and 1 s, prompts of 100, 100 and
// 200 tokens. w = 1/4 x 1/4, 2/4 x 1/4, 1/4 x 2/4 = 1/16, 2/16, 2/16: of 50 cells 10, 20 and 20.
TEST(ShareByWeight, AsPrinted) {
  EXPECT_EQ(share_by_weight({{30, 0, 1. / 16}, {40, 0, 2. / 16}, {20, 0, 2. / 16}}, 50),
            (Shares{10, 20, 20}));
  EXPECT_EQ(share_by_weight({{10, 2, 1}, {20, 4, 3}}, 30), (Shares{10, 20})) << "there is enough";
  // The second wants no more than 15, and of the 35 that are left the others have a third and two thirds.
  EXPECT_EQ(share_by_weight({{30, 0, 1}, {15, 0, 2}, {40, 0, 2}}, 50), (Shares{11, 15, 23}));
  // The first needs 16.
  EXPECT_EQ(share_by_weight({{30, 16, 1}, {40, 0, 2}, {20, 0, 2}}, 50), (Shares{16, 17, 17}));
  EXPECT_EQ(share_by_weight({{30, 16, 1}, {15, 0, 2}, {40, 0, 2}}, 50), (Shares{16, 15, 19})) << "both";
  EXPECT_EQ(share_by_weight({{10, 0, 0}, {10, 0, 0}}, 10), (Shares{5, 5})) << "all late";
}

TEST(ShareExcess, WithinBoundsAndWithinWhatThereIs) {
  Random random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<MemoryDemand> demands(random.below(9));
    uint64_t least = 0, wanted = 0;
    for (MemoryDemand& d : demands) {
      d.wanted = static_cast<uint32_t>(random.below(100));
      d.least = static_cast<uint32_t>(random.below(d.wanted + 1));
      d.weight = random.unit() < 0.2 ? 0 : random.unit();
      least += d.least;
      wanted += d.wanted;
    }
    const uint64_t available = random.below(wanted + 20);
    const Shares given =
        round % 2 == 0 ? share_excess(demands, available) : share_by_weight(demands, available);
    const uint64_t sum = std::accumulate(given.begin(), given.end(), uint64_t{0});
    EXPECT_LE(sum, std::max(least, available));
    // Rounding down costs less than one each.
    EXPECT_GE(sum + demands.size(), std::min(wanted, available));
    for (size_t i = 0; i < demands.size(); ++i) {
      EXPECT_GE(given[i], demands[i].least);
      EXPECT_LE(given[i], demands[i].wanted);
    }
  }
}

}  // namespace
}  // namespace kvasir
