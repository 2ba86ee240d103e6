// What a peer costs, and how much of its compute a creditor gives: numbers worked by hand.
#include <gtest/gtest.h>

#include "cluster/memory/compute_budget.h"
#include "cluster/memory/memory_rig.h"
#include "cluster/memory/ship_or_fetch.h"

namespace kvasir {
namespace {

TEST(RemoteRun, BytesAreThoseOfTheShape) {
  // 8 KV heads of 128 with 4 queries each, bf16: q is 4096 floats; a record 2 x 4 + 4 x 128 = 520.
  const MemoryShape shape = test::memory_shape(ops::KvType::kBf16, 8, 4, 128);
  const RemoteRun run = remote_run(shape, {4, 11}, 2);  // [4,8) [8,10) [10,11)
  EXPECT_EQ(run.leaves, 7u);
  EXPECT_EQ(run.query_bytes, 2u * 4096 * 4);
  EXPECT_EQ(run.partial_bytes, 2u * 3 * 8 * 520 * 4);
  EXPECT_EQ(run.kv_bytes, 7u * 256 * 2 * 8 * 128 * 2);
}

TEST(ShipOrFetch, CostsAreTheSums) {
  const RemoteRun run{10, 3, 6000, 4000, 2'000'000};
  // 1 ms there and back, 1 MB/s.
  const PeerCost peer{1e-3, 1e6, 5e-3, 2e-4};
  const ShipOrFetch cost = ship_or_fetch(run, peer, 1e-4);
  EXPECT_DOUBLE_EQ(cost.ship_s, 1e-3 + 10'000 / 1e6 + 5e-3 + 30 * 2e-4);  // 22 ms
  EXPECT_DOUBLE_EQ(cost.fetch_s, 1e-3 + 2.0 + 30 * 1e-4);
  EXPECT_TRUE(cost.ship());
}

TEST(ShipOrFetch, ManyRowsAreFetchedFor) {
  // Of a leaf: K and V 1 MB, q 16 kB a row, answer 24 kB a row; 1 GB/s, so that the bytes break even at 25
  // rows.
  const PeerCost peer{50e-6, 1e9, 0, 30e-6};
  const auto at = [&](uint32_t rows) {
    return ship_or_fetch({1, rows, rows * 16'000u, rows * 24'000u, 1'000'000}, peer, 30e-6);
  };
  EXPECT_TRUE(at(24).ship());
  EXPECT_DOUBLE_EQ(at(25).ship_s, at(25).fetch_s);
  EXPECT_FALSE(at(26).ship());
}

TEST(ShipOrFetch, ABusyCreditorIsFetchedFrom) {
  const RemoteRun run{4, 1, 16'000, 24'000, 4'000'000};
  PeerCost peer{50e-6, 1e9, 0, 100e-6};
  EXPECT_TRUE(ship_or_fetch(run, peer, 100e-6).ship());
  peer.wait_s = 5e-3;  // the fetch takes 4 ms
  EXPECT_FALSE(ship_or_fetch(run, peer, 100e-6).ship());
  peer.wait_s = 0;
  peer.attend_s = 1.2e-3;  // 4.8 ms of attention there
  EXPECT_FALSE(ship_or_fetch(run, peer, 100e-6).ship());
}

// The creditor attends while the rows attend to what is here; what is fetched is attended after that.
TEST(ShipOrFetch, WhatTheRowsAttendToHereMeanwhileSpeaksForTheQuery) {
  // The bytes of 40 rows cost 1.6 ms, those of K and V 1 ms; attention 1.2 ms on either side.
  const RemoteRun run{1, 40, 40 * 16'000, 40 * 24'000, 1'000'000};
  const PeerCost peer{50e-6, 1e9, 0, 30e-6};
  const auto at = [&](double meanwhile_s) { return ship_or_fetch(run, peer, 30e-6, meanwhile_s); };
  EXPECT_DOUBLE_EQ(at(0).ship_s, 2.85e-3);
  EXPECT_DOUBLE_EQ(at(0).fetch_s, 2.25e-3);
  EXPECT_FALSE(at(0).ship());
  EXPECT_DOUBLE_EQ(at(1.5e-3).ship_s, 2.85e-3);
  EXPECT_DOUBLE_EQ(at(1.5e-3).fetch_s, 2.7e-3);
  EXPECT_FALSE(at(1.5e-3).ship());
  EXPECT_TRUE(at(2e-3).ship());
  EXPECT_DOUBLE_EQ(at(2e-3).fetch_s, 3.2e-3);
  EXPECT_DOUBLE_EQ(at(5e-3).ship_s, 5e-3) << "it has long been answered";
}

TEST(RunningMean, ForgetsBeyondItsSpan) {
  RunningMean mean(4);
  EXPECT_TRUE(mean.empty());
  EXPECT_EQ(mean.get(), 0);
  for (double value : {1.0, 2.0, 3.0, 6.0}) mean.add(value);
  EXPECT_DOUBLE_EQ(mean.get(), 3.0);
  mean.add(7.0);  // three quarters of 12, and 7, over 4
  EXPECT_DOUBLE_EQ(mean.get(), (9.0 + 7.0) / 4);
  for (int i = 0; i < 100; ++i) mean.add(5.0);
  EXPECT_NEAR(mean.get(), 5.0, 1e-9);
}

TEST(PeerCostEstimate, TellsLatencyFromBandwidth) {
  PeerCostEstimate estimate;
  EXPECT_FALSE(estimate.cost());
  estimate.moved(1'000, 200e-6 + 1'000 / 1e9);
  EXPECT_FALSE(estimate.cost());  // no query yet
  estimate.attended(8, 4e-3, 1e-3);
  for (uint64_t bytes : {10'000u, 500'000u, 2'000'000u}) {
    estimate.moved(bytes, 200e-6 + static_cast<double>(bytes) / 1e9);
  }
  const auto cost = estimate.cost();
  ASSERT_TRUE(cost);
  EXPECT_NEAR(cost->latency_s, 200e-6, 1e-9);
  EXPECT_NEAR(cost->bytes_per_s, 1e9, 1e3);
  EXPECT_DOUBLE_EQ(cost->attend_s, 0.5e-3);
  EXPECT_DOUBLE_EQ(cost->wait_s, 1e-3);
}

TEST(PeerCostEstimate, OneSizeIsBandwidthAlone) {
  PeerCostEstimate estimate;
  estimate.attended(1, 1e-3, 0);
  for (int i = 0; i < 10; ++i) estimate.moved(1'000'000, 2e-3);
  EXPECT_DOUBLE_EQ(estimate.cost()->bytes_per_s, 5e8);
  EXPECT_EQ(estimate.cost()->latency_s, 0);
  // Larger ones that were faster would be a negative bandwidth.
  for (int i = 0; i < 10; ++i) estimate.moved(2'000'000, 1e-3);
  EXPECT_EQ(estimate.cost()->latency_s, 0);
  EXPECT_DOUBLE_EQ(estimate.cost()->bytes_per_s, 1.5e6 / 1.5e-3);
}

TEST(PeerCostEstimate, FollowsAPathThatChanges) {
  PeerCostEstimate estimate;
  const auto observe = [&](double bytes_per_s) {
    for (int i = 0; i < 500; ++i) {
      const uint64_t bytes = i % 2 ? 10'000 : 1'000'000;
      estimate.moved(bytes, 1e-4 + static_cast<double>(bytes) / bytes_per_s);
    }
  };
  estimate.attended(1, 1e-3, 0);
  observe(1e9);
  observe(1e8);
  EXPECT_NEAR(estimate.cost()->bytes_per_s, 1e8, 1e6);
  EXPECT_NEAR(estimate.cost()->latency_s, 1e-4, 1e-5);
}

constexpr Nanos kMs = kNanosPerMilli;

TEST(ComputeBudget, GivesItsShare) {
  ComputeBudget budget(0.25, 1, 10 * kMs, 0);
  EXPECT_EQ(budget.ready_at(0), 0);
  budget.spend(30 * kMs, 0);  // 20 ms of debt at a quarter
  EXPECT_NEAR(static_cast<double>(budget.ready_at(0)), 80.0 * kMs, 10);
  EXPECT_GT(budget.ready_at(79 * kMs), 79 * kMs);
  EXPECT_EQ(budget.ready_at(81 * kMs), 81 * kMs);
  // No more than the burst is saved up.
  budget.spend(11 * kMs, 10'000 * kMs);
  EXPECT_GT(budget.ready_at(10'000 * kMs), 10'000 * kMs);
  // Two threads have twice the time.
  ComputeBudget two(0.25, 2, 0, 0);
  two.spend(20 * kMs, 0);
  EXPECT_NEAR(static_cast<double>(two.ready_at(0)), 40.0 * kMs, 10);
}

TEST(ComputeBudget, SaysWhenWorkWouldBeDone) {
  ComputeBudget budget(0.5, 1, 10 * kMs, 0);
  EXPECT_NEAR(static_cast<double>(budget.done_at(5 * kMs, 0)), 10.0 * kMs, 10);
  budget.spend(20 * kMs, 0);
  EXPECT_NEAR(static_cast<double>(budget.done_at(5 * kMs, 0)), 30.0 * kMs, 10);
  EXPECT_NEAR(static_cast<double>(budget.done_at(0, 20 * kMs)), 20.0 * kMs, 10);
}

TEST(ComputeBudget, TheShareMayChange) {
  ComputeBudget budget(0.5, 1, 0, 0);
  budget.spend(20 * kMs, 0);
  budget.set_share(0.25, 20 * kMs);  // half of the debt is paid
  EXPECT_NEAR(static_cast<double>(budget.ready_at(20 * kMs)), 60.0 * kMs, 10);
  budget.set_share(0, 20 * kMs);
  EXPECT_EQ(budget.ready_at(20 * kMs), INT64_MAX);
  EXPECT_EQ(budget.done_at(1, 20 * kMs), INT64_MAX);
  EXPECT_EQ(budget.ready_at(9'999 * kMs), INT64_MAX);
  budget.set_share(1, 20 * kMs);
  EXPECT_EQ(budget.ready_at(20 * kMs), 20 * kMs);
}

}  // namespace
}  // namespace kvasir
