// Claims on what links share, by a claimant that stands for a collective.
#include "cache/link_arbiter.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace kvasir {
namespace {

TEST(LinkArbiter, ClaimsAreCounted) {
  LinkArbiter arbiter;
  int released = 0;
  arbiter.subscribe(&released, [&] { ++released; });
  EXPECT_FALSE(arbiter.claimed());
  arbiter.claim();
  arbiter.claim();
  EXPECT_TRUE(arbiter.claimed());
  arbiter.release();
  EXPECT_TRUE(arbiter.claimed());
  EXPECT_EQ(released, 0);
  arbiter.release();
  EXPECT_FALSE(arbiter.claimed());
  EXPECT_EQ(released, 1);
}

TEST(LinkArbiter, AClaimLastsAsLongAsItsScope) {
  LinkArbiter arbiter;
  {
    const LinkClaim claim(arbiter);
    EXPECT_TRUE(arbiter.claimed());
    const LinkClaim another(arbiter);
  }
  EXPECT_FALSE(arbiter.claimed());
}

TEST(LinkArbiter, EveryLinkIsTold) {
  LinkArbiter arbiter;
  int a = 0;
  int b = 0;
  arbiter.subscribe(&a, [&] { ++a; });
  arbiter.subscribe(&b, [&] { ++b; });
  { const LinkClaim claim(arbiter); }
  arbiter.unsubscribe(&a);
  { const LinkClaim claim(arbiter); }
  EXPECT_EQ(a, 1);
  EXPECT_EQ(b, 2);
}

TEST(LinkArbiter, AnyThreadMayClaim) {
  LinkArbiter arbiter;
  int released = 0;
  arbiter.subscribe(&arbiter, [&] { ++released; });
  std::vector<std::thread> claimants;
  for (int i = 0; i < 4; ++i) {
    claimants.emplace_back([&] {
      for (int j = 0; j < 2000; ++j) {
        const LinkClaim claim(arbiter);
        EXPECT_TRUE(arbiter.claimed());
      }
    });
  }
  for (std::thread& t : claimants) t.join();
  EXPECT_FALSE(arbiter.claimed());
  EXPECT_GE(released, 1);
  EXPECT_LE(released, 8000);
}

TEST(LinkArbiterDeathTest, ReleasingWhatNobodyClaimed) {
  LinkArbiter arbiter;
  EXPECT_DEATH(arbiter.release(), "claims=0");
}

}  // namespace
}  // namespace kvasir
