// Which thread runs on which CPU.
#include "base/affinity.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvasir {
namespace {

using Cpus = std::vector<int>;

TEST(Affinity, ATeamThatTakesAllCpusOrAllButOneIsPinned) {
  const Cpus cpus = {0, 2, 3, 7};
  for (Pinning pinning : {Pinning::kAuto, Pinning::kOn}) {
    EXPECT_EQ(share_cpus(cpus, 4, pinning).team, cpus);
    EXPECT_EQ(share_cpus(cpus, 4, pinning).others, Cpus{});
    EXPECT_EQ(share_cpus(cpus, 3, pinning).team, (Cpus{2, 3, 7}));
    EXPECT_EQ(share_cpus(cpus, 3, pinning).others, Cpus{0});
  }
  EXPECT_EQ(share_cpus(cpus, 4, Pinning::kOff).team, Cpus{});
}

TEST(Affinity, ASmallerTeamIsPinnedIfAskedTo) {
  const Cpus cpus = {0, 1, 2, 3};
  EXPECT_EQ(share_cpus(cpus, 2, Pinning::kAuto).team, Cpus{});
  EXPECT_EQ(share_cpus(cpus, 2, Pinning::kAuto).others, Cpus{});
  EXPECT_EQ(share_cpus(cpus, 2, Pinning::kOn).team, (Cpus{2, 3}));
  EXPECT_EQ(share_cpus(cpus, 2, Pinning::kOn).others, (Cpus{0, 1}));
  const Cpus two = {0, 1};
  EXPECT_EQ(share_cpus(two, 2, Pinning::kAuto).team, Cpus{});
  EXPECT_EQ(share_cpus(two, 2, Pinning::kOn).team, two);
}

TEST(Affinity, MoreThreadsThanCpusAreNeverPinned) {
  const Cpus cpus = {0, 1, 2};
  EXPECT_EQ(share_cpus(cpus, 4, Pinning::kOn).team, Cpus{});
}

TEST(Affinity, AThreadStaysWhereItIsKept) {
  std::thread([] {
    const Cpus all = allowed_cpus();
    ASSERT_FALSE(all.empty());
    const Cpus last = {all.back()};
    ASSERT_TRUE(keep_on_cpus(last));
    EXPECT_EQ(allowed_cpus(), last);
    Cpus inherited;
    std::thread([&] { inherited = allowed_cpus(); }).join();
    EXPECT_EQ(inherited, last);
    EXPECT_TRUE(keep_on_cpus(all));
    EXPECT_EQ(allowed_cpus(), all);
  }).join();
}

TEST(Affinity, ImpossibleCpusAreRefused) {
  const Cpus before = allowed_cpus();
  EXPECT_FALSE(keep_on_cpus(Cpus{}));
  EXPECT_FALSE(keep_on_cpus(Cpus{-1}));
  EXPECT_FALSE(keep_on_cpus(Cpus{1 << 20}));
  EXPECT_EQ(allowed_cpus(), before);
}

}  // namespace
}  // namespace kvasir
