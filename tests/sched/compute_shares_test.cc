// Threads for what is computed again beside those that decode.
#include "sched/mechanisms/compute_shares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>

#include "base/random.h"

namespace kvasir::test {
namespace {

TEST(ComputeShares, InProportionToTheWork) {
  EXPECT_EQ(again_threads(1, 1), 512U);
  EXPECT_EQ(again_threads(3, 1), 768U);
  EXPECT_EQ(again_threads(1, 3), 256U);
  // 1024 / 3 = 341 threads are 10.7 warps.
  EXPECT_EQ(again_threads(1, 2), 352U);
  EXPECT_EQ(again_threads(1, 2, 96), 32U);
}

TEST(ComputeShares, NeitherIsWithoutAWarp) {
  EXPECT_EQ(again_threads(1e-9, 1), 32U);
  EXPECT_EQ(again_threads(1, 1e-9), 1024U - 32);
  EXPECT_EQ(again_threads(1, 0), 1024U - 32);
  EXPECT_EQ(again_threads(1e-9, 1, 64), 32U);
  EXPECT_EQ(again_threads(1e9, 1, 64), 32U);
}

TEST(ComputeShares, NothingToComputeAgainTakesNone) {
  EXPECT_EQ(again_threads(0, 1), 0U);
  EXPECT_EQ(again_threads(0, 0), 0U);
}

// No other number of whole warps is nearer to T V_K1 / (V_K1 + V_K2), and more work never gets fewer.
TEST(ComputeShares, TheNearestWarp) {
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    const double again = std::exp(20 * random.unit() - 10), decode = std::exp(20 * random.unit() - 10);
    for (uint32_t total : {64U, 256U, 1024U}) {
      const uint32_t threads = again_threads(again, decode, total);
      const double exact = total * again / (again + decode);
      ASSERT_EQ(threads % kWarpThreads, 0U);
      for (uint32_t other = 32; other < total; other += 32) {
        ASSERT_LE(std::abs(threads - exact), std::abs(other - exact) + 1e-9) << again << " " << decode;
      }
      ASSERT_LE(threads, again_threads(again * 1.5, decode, total));
    }
  }
}

TEST(ComputeSharesDeathTest, WantsWholeWarps) {
  EXPECT_DEATH(again_threads(1, 1, 100), "total=100");
  EXPECT_DEATH(again_threads(1, 1, 32), "total=32");
}

}  // namespace
}  // namespace kvasir::test
