// Requests of instances whose clocks have nothing in common come in one order.
#include "cluster/protocol/cluster_clock.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "cluster/protocol/cluster.pb.h"
#include "cluster/protocol/instances.h"

namespace kvasir::cluster::test {
namespace {

TEST(ClusterClock, TheFastestIsFollowed) {
  ClusterClock clock;
  EXPECT_EQ(clock.of(100), 100);
  clock.hear(40, 100);
  EXPECT_EQ(clock.of(100), 100) << "a slower one is not";
  clock.hear(5'000, 100);
  EXPECT_EQ(clock.of(200), 5'100);
  EXPECT_EQ(clock.own(5'100), 200);
  clock.hear(5'050, 200);  // was long on its way
  EXPECT_EQ(clock.of(200), 5'100);
}

TEST(ClusterClock, WhateverIsToldTimesStayApart) {
  ClusterClock clock;
  for (const int64_t told : {INT64_MAX, INT64_MIN, int64_t{0}, INT64_MAX}) {
    clock.hear(told, 1'000);
    for (const Nanos own : {INT64_MIN, Nanos{0}, Nanos{5}, INT64_MAX}) {
      EXPECT_LE(clock.of(own), INT64_MAX / 4);
      EXPECT_GE(clock.of(own), INT64_MIN / 4);
    }
    EXPECT_LT(clock.of(0), clock.of(5));
  }
}

// Clocks that begin anywhere and run at paces of their own: after each has been heard, two requests that came
// apart by more than messages take are in the true order for all.
TEST(ClusterClock, AllComeToOneOrder) {
  Random random(6);
  for (int round = 0; round < 200; ++round) {
    constexpr int kClocks = 4;
    constexpr Nanos kWay = 5 * kNanosPerMilli;
    Nanos start[kClocks];
    double pace[kClocks];
    ClusterClock clocks[kClocks];
    for (int i = 0; i < kClocks; ++i) {
      start[i] = static_cast<Nanos>(random.below(uint64_t{1} << 50));
      pace[i] = 1 + 1e-11 * static_cast<double>(random.below(1'000'000));
    }
    const auto shows = [&](int i, Nanos at) {
      return start[i] + static_cast<Nanos>(static_cast<double>(at) * pace[i]);
    };
    Nanos at = 0;
    for (int message = 0; message < 200; ++message) {
      at += static_cast<Nanos>(random.below(100 * kNanosPerMilli));
      const auto from = static_cast<int>(random.below(kClocks)), to = static_cast<int>(random.below(kClocks));
      if (from == to) continue;
      const Nanos way = 1 + static_cast<Nanos>(random.below(kWay));
      clocks[to].hear(clocks[from].of(shows(from, at)), shows(to, at + way));
    }
    Nanos least = INT64_MAX, most = 0;
    for (int i = 0; i < kClocks; ++i) {
      const Nanos now = clocks[i].of(shows(i, at));
      least = std::min(least, now);
      most = std::max(most, now);
    }
    // A way or two from the fastest, and what drifted since it was heard.
    EXPECT_LE(most - least, 3 * kWay + at / 100'000) << round;
  }
}

// What instance 2 waits for, by a clock that is an hour ahead of instance 1's.
TEST(ClusterClock, APeersRequestIsAsOldHereAsThere) {
  constexpr Nanos kAhead = 3600 * kNanosPerSecond;
  Instances all({0, 8, 0});
  all.run(60 * kNanosPerSecond);
  wire::Waiting waits;
  waits.set_blocks(6);
  waits.set_since_ns(all.now() + kAhead - 5 * kNanosPerSecond);
  waits.set_now_ns(all.now() + kAhead);
  waits.set_needed_since_ns(INT64_MAX);
  Lender& lender = all.lender(1);
  ASSERT_TRUE(lender.handle(all.id(2), waits, all.now()).ok());
  EXPECT_EQ(lender.awaited().blocks, 6u);
  EXPECT_EQ(lender.awaited().since, all.now() - 5 * kNanosPerSecond);
  // And the other way round: an instance that has heard it speaks by it.
  all.at(1).wait_for(3, all.now(), all.now() - 9 * kNanosPerSecond);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.lender(0).awaited().since, all.now() - 10 * kNanosPerSecond);
}

// An instance that only lends says so in its answers, or requests of others would be older than all of its
// own.
TEST(ClusterClock, AnInstanceThatOnlyLendsIsHeard) {
  constexpr Nanos kAhead = 3600 * kNanosPerSecond;
  Instances all({0, 8, 0});
  all.run(60 * kNanosPerSecond);
  wire::Waiting of_a_fast_clock;
  of_a_fast_clock.set_now_ns(all.now() + kAhead);
  ASSERT_TRUE(all.lender(1).handle(all.id(2), of_a_fast_clock, all.now()).ok());
  all.borrow(0, 3);
  all.at(0).wait_for(2, all.now(), all.now() - 5 * kNanosPerSecond);
  all.deliver();
  // At one time the lower name goes first.
  EXPECT_EQ(all.lender(1).awaited().since, all.now() - 5 * kNanosPerSecond - 1);
}

TEST(ClusterClock, ARecallOfAllIsOneWhateverADebtorSays) {
  Instances all({0, 8});
  all.run(kNanosPerSecond);
  all.at(0).borrow(3, all.now(), INT64_MIN);
  all.deliver();
  EXPECT_EQ(all.at(1).recall(UINT32_MAX, all.now()), 3u);
}

}  // namespace
}  // namespace kvasir::cluster::test
