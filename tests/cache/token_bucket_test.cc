// The rate of an emulated link, with times handed in.
#include "cache/tiers/token_bucket.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "base/units.h"

namespace kvasir {
namespace {

constexpr Nanos kMicro = 1000;

TEST(TokenBucket, BytesTakeTheirTime) {
  TokenBucket bucket(1e9);
  EXPECT_EQ(bucket.pass(1000, 5 * kMicro), 6 * kMicro);
  EXPECT_EQ(bucket.pass(500, 5 * kMicro), 6 * kMicro + 500);  // behind the first
  EXPECT_EQ(bucket.pass(0, 5 * kMicro), 6 * kMicro + 500);
}

TEST(TokenBucket, AnIdleLinkIsNotFasterAfterwards) {
  TokenBucket bucket(1e9);
  EXPECT_EQ(bucket.pass(1000, 0), kMicro);
  EXPECT_EQ(bucket.pass(1000, kNanosPerSecond), kNanosPerSecond + kMicro);
  EXPECT_EQ(bucket.pass(1000, kNanosPerSecond), kNanosPerSecond + 2 * kMicro);
}

TEST(TokenBucket, WhatComesWhileBytesPassIsBehindThem) {
  TokenBucket bucket(1e6);
  EXPECT_EQ(bucket.pass(100, 0), 100 * kMicro);
  EXPECT_EQ(bucket.pass(100, 99 * kMicro), 200 * kMicro);
  EXPECT_EQ(bucket.pass(100, 200 * kMicro), 300 * kMicro);
  EXPECT_EQ(bucket.pass(100, 301 * kMicro), 401 * kMicro);
}

TEST(TokenBucket, RoundingsDoNotAddUp) {
  TokenBucket bucket(3e9);  // a byte is a third of a nanosecond
  Nanos through = 0;
  for (int i = 0; i < 3'000'000; ++i) through = bucket.pass(1, 0);
  EXPECT_NEAR(static_cast<double>(through), 1e6, 1);
}

// Passes units for about a second to a caller that sleeps too long each time, and returns the bytes per
// second.
double rate_with_oversleep(double bytes_per_s, Nanos most_too_long, uint64_t seed) {
  TokenBucket bucket(bytes_per_s);
  Random random(seed);
  Nanos now = 0;
  uint64_t bytes = 0;
  while (now < kNanosPerSecond) {
    const uint64_t unit = 1 + random.below(256 * kKiB);
    const Nanos through = bucket.pass(unit, 0);
    bytes += unit;
    if (now < through) now = through + random.between(0, most_too_long);
    EXPECT_GE(now, through);  // never faster than the rate
  }
  return static_cast<double>(bytes) / to_seconds(now);
}

TEST(TokenBucket, ALateWakeUpIsMadeUpFor) {
  for (double rate : {1e7, 1e8, 1e9, 1e10, 1e11}) {
    for (Nanos too_long : {Nanos{0}, 70 * kMicro, kNanosPerMilli, 10 * kNanosPerMilli}) {
      const double seen = rate_with_oversleep(rate, too_long, 7);
      EXPECT_LE(seen, rate * 1.0001) << too_long;
      EXPECT_GE(seen, rate * 0.985) << too_long;
    }
  }
}

TEST(TokenBucketDeathTest, ARateIsPositive) {
  EXPECT_DEATH(TokenBucket(0), "bytes_per_s");
}

}  // namespace
}  // namespace kvasir
