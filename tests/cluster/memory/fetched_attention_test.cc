// Leaves that are attended to here have the bits of home, whatever brought them here; and what decides that.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/mutant.h"
#include "cluster/memory/fetched_share.h"
#include "cluster/memory/memory_rig.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kManyLeaves = 13;

bool bits_agree(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// A query under way, over random leaves, with random rows.
struct RandomQuery {
  RandomQuery(MemoryWorld& world, uint32_t most_rows) {
    Random& random = world.random;
    run.first = static_cast<uint32_t>(random.below(kManyLeaves));
    run.end = run.first + 1 + static_cast<uint32_t>(random.below(kManyLeaves - run.first));
    layer = static_cast<uint32_t>(random.below(2));
    rows = 1 + static_cast<uint32_t>(random.below(most_rows));
    q = world.random_query(rows);
    partials = world.room(run, rows);
  }
  void begin(MemoryWorld& world) { world.attend(run, layer, q, rows, partials, outcome); }
  bool right(const MemoryWorld& world) const {
    return outcome.calls == 1 && outcome.status.ok() &&
           bits_agree(partials, world.expected(run, layer, q, rows));
  }

  LeafRun run;
  uint32_t layer = 0;
  uint32_t rows = 0;
  std::vector<float> q, partials;
  Outcome outcome;
};

// Like world.run(), while creditors become busy and free again.
void run_with_moods(MemoryWorld& world) {
  for (int i = 0; i < 300; ++i) {
    auto& creditor = world.creditors[world.random.below(world.creditors.size())];
    if (world.random.below(6) == 0) creditor.memory->set_share(world.random.below(2) == 0 ? 0 : 1);
    world.network.deliver_one(world.random);
    creditor.memory->serve_one();
    if (world.random.below(3) == 0) world.borrowed->attend_one();
  }
  world.run();
}

class FetchedAttention : public testing::TestWithParam<std::tuple<Fetch, ops::KvType>> {};

TEST_P(FetchedAttention, HasTheBitsOfHome) {
  const auto& [fetch, type] = GetParam();
  BorrowedMemoryStats sums;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const uint32_t block = seed % 3 == 0 ? 128 : seed % 3 == 1 ? 64 : 32;
    const MemoryShape shape = memory_shape(type, 2, seed % 2 ? 3 : 1, 32, block);
    // Windows of one leaf to those of all, one and more at a time; rows cut, and few messages on their way.
    const uint64_t room = shape.leaf_bytes() * (seed < 6 ? seed * 2 : 200);
    BorrowedMemoryOptions options{.max_in_flight_bytes = seed % 2 ? 20'000u : 1u << 24,
                                  .max_message_bytes = seed % 3 ? 4'000u : 1u << 22,
                                  .fetch = fetch,
                                  .max_fetch_bytes = room};
    MemoryWorld world(shape, 1 + static_cast<int>(seed % 4), kManyLeaves, 50 + seed, options);
    world.place_anywhere(3);
    for (int i = 0; i < 6; ++i) {
      std::deque<RandomQuery> queries;
      for (int k = 0; k < 3; ++k) queries.emplace_back(world, i % 2 ? 20 : 3).begin(world);
      run_with_moods(world);
      for (const RandomQuery& query : queries) {
        EXPECT_TRUE(query.right(world))
            << "seed=" << seed << " run=[" << query.run.first << ", " << query.run.end
            << ") rows=" << query.rows << " " << query.outcome.calls << query.outcome.status.message();
      }
    }
    const auto stats = world.borrowed->stats();
    EXPECT_EQ(stats.queries, 18u);
    EXPECT_EQ(stats.failed, 0u);
    EXPECT_EQ(stats.in_flight_bytes + stats.queued, 0u);
    EXPECT_LE(stats.scratch_bytes, std::max(room, shape.leaf_bytes()));
    EXPECT_LE(stats.fetched_busy, stats.busy);
    sums.shipped += stats.shipped;
    sums.fetched_cost += stats.fetched_cost;
    sums.fetched_busy += stats.fetched_busy;
    sums.fetched_split += stats.fetched_split;
  }
  EXPECT_GT(sums.fetched_split, 20u);
  const bool always = fetch == Fetch::kAlways;
  EXPECT_EQ(sums.shipped > 50, !always);
  EXPECT_EQ(sums.fetched_busy > 10, !always);
  EXPECT_EQ(sums.fetched_cost > 50, always);
}

INSTANTIATE_TEST_SUITE_P(Ways, FetchedAttention,
                         testing::Combine(testing::Values(Fetch::kNever, Fetch::kByCost, Fetch::kAlways),
                                          testing::ValuesIn(ops::kKvTypes)));

TEST(FetchedShare, WindowsAreFullButTheLast) {
  const MemoryShape shape = memory_shape(ops::KvType::kBf16, 1, 1);
  const LeafRun runs[] = {{4, 8}, {9, 12}};
  float q = 0, out = 0;  // not looked at before something is attended to
  const FetchedShare share(shape, ops::kernels_for(ops::detect_isa()), runs, 3, 1, &q, &out);
  ASSERT_EQ(share.windows(), 3u);
  const auto of = [&](size_t window) {
    return std::vector<LeafRun>(share.runs(window).begin(), share.runs(window).end());
  };
  EXPECT_EQ(of(0), (std::vector<LeafRun>{{4, 7}}));
  EXPECT_EQ(of(1), (std::vector<LeafRun>{{7, 8}, {9, 11}}));
  EXPECT_EQ(of(2), (std::vector<LeafRun>{{11, 12}}));
}

// What is counted, for a query of leaves 0 to 5: 0, 2 and 4 at one creditor, 1 at the other, 3 at both.
TEST(FetchedStats, SayWhatWasDoneAndWhy) {
  const MemoryShape shape = memory_shape(ops::KvType::kBf16, 2, 2);
  for (const bool busy : {false, true}) {
    MemoryWorld world(shape, 2, 5, 3, {.fetch = Fetch::kNever});
    world.place_blocks([](uint32_t cell) { return cell / 4 == 1 || cell == 13; });
    if (busy) world.creditors[0].memory->set_share(0);
    const auto q = world.random_query(3);
    auto partials = world.room({0, 5}, 3);
    Outcome outcome;
    world.attend({0, 5}, 0, q, 3, partials, outcome);
    world.run();
    EXPECT_TRUE(outcome.status.ok());
    EXPECT_TRUE(bits_agree(partials, world.expected({0, 5}, 0, q, 3)));
    const auto stats = world.borrowed->stats();
    const uint64_t here = busy ? 4 : 1;
    EXPECT_EQ(stats.shipped, 2u);
    EXPECT_EQ(stats.fetched_split, 1u);
    EXPECT_EQ(stats.fetched_busy, busy ? 1u : 0u);
    EXPECT_EQ(stats.busy, busy ? 1u : 0u);
    EXPECT_EQ(stats.fetched_cost, 0u);
    EXPECT_EQ(stats.fetched_bytes, here * shape.leaf_bytes());
    EXPECT_EQ(stats.local_leaf_rows, here * 3);
    EXPECT_EQ(stats.leaf_rows, 15u);
    EXPECT_EQ(stats.read_bytes, 0u);  // those that were asked for
  }
}

// Of a creditor that makes queries wait, K and V are fetched; now and then it is asked again.
TEST(FetchedByCost, WaitingCostsQueries) {
  const MemoryShape shape = memory_shape(ops::KvType::kBf16, 2, 2);
  MemoryWorld world(shape, 1, 2, 5);
  world.place([](uint32_t) { return 0; });
  const auto q = world.random_query(1);
  auto partials = world.room({0, 2}, 1);
  const auto attend = [&] {
    Outcome outcome;
    world.attend({0, 2}, 0, q, 1, partials, outcome);
    while (world.network.deliver_one(world.random)) {
    }
    if (world.borrowed->stats().shipped == 1) world.clock.advance(50 * kNanosPerMilli);
    world.run();
    EXPECT_TRUE(outcome.status.ok());
    EXPECT_TRUE(bits_agree(partials, world.expected({0, 2}, 0, q, 1)));
  };
  // A read that takes 1 ms: with place()'s writes, which took no time, a path of some bytes per second.
  Outcome read;
  std::vector<std::byte> bytes(1000);
  world.borrowed->read(0, bytes, read.done());
  world.clock.advance(kNanosPerMilli);
  world.run();
  attend();  // nothing was known of queries
  EXPECT_EQ(world.borrowed->stats().shipped, 1u);
  const auto cost = world.borrowed->cost(world.creditors[0].id);
  ASSERT_TRUE(cost);
  EXPECT_NEAR(cost->wait_s, 50e-3, 1e-9);
  const RemoteRun run = remote_run(shape, {0, 2}, 1);
  ASSERT_FALSE(ship_or_fetch(run, *cost, 0).ship());
  for (uint64_t i = 1; i < 16; ++i) {
    attend();
    EXPECT_EQ(world.borrowed->stats().fetched_cost, i);
  }
  EXPECT_EQ(world.borrowed->stats().shipped, 1u);
  attend();
  EXPECT_EQ(world.borrowed->stats().shipped, 2u);
  EXPECT_EQ(world.borrowed->stats().fetched_cost, 15u);
  // It waited no more: half of what it did in the mean.
  EXPECT_NEAR(world.borrowed->cost(world.creditors[0].id)->wait_s, 25e-3, 1e-9);
}

// Each look at it takes a millisecond.
class SteppingClock final : public Clock {
 public:
  Nanos now() const override { return now_ += kNanosPerMilli; }

 private:
  mutable std::atomic<Nanos> now_{0};
};

TEST(FetchedByCost, OwnTimeIsMeasuredAndCounts) {
  const MemoryShape shape = memory_shape(ops::KvType::kBf16, 2, 2);
  MemoryWorld world(shape, 1, 1, 6);
  SteppingClock clock;
  BorrowedMemory borrowed({.cells = 8, .deadline = 100 * kNanosPerSecond, .own_thread = false}, world.self,
                          shape, world.kernels, clock, world.network.sender(world.self));
  LentMemory& lent = *world.creditors[0].memory;
  world.creditors[0].cells->lend(world.self, 9, 8);
  borrowed.map(world.creditors[0].id, 9, 0, 0, 8);
  world.network.set_deliver([&](const HeldNetwork::Packet& packet) {
    if (packet.to == world.self) return borrowed.handle(packet.from, packet.bytes);
    lent.handle(packet.from, packet.bytes);
  });
  const auto attend = [&](uint32_t rows) {
    const auto q = world.random_query(rows);
    auto partials = world.room({0, 2}, rows);
    const auto pieces = world.pieces({0, 2}, 0);
    Outcome outcome;
    borrowed.attend({0, 2, rows, q.data(), shape.q_dim(), pieces}, partials, outcome.done());
    for (bool more = true; more;) {
      more = world.network.deliver_one(world.random);
      more |= lent.serve_one();
      more |= borrowed.attend_one();
    }
    EXPECT_TRUE(outcome.status.ok());
  };
  lent.set_share(0);
  attend(5);
  EXPECT_EQ(borrowed.stats().fetched_busy, 1u);
  EXPECT_NEAR(borrowed.stats().local_s, 1e-3, 1e-9);
  EXPECT_EQ(borrowed.stats().local_leaf_rows, 10u);
  // 0.1 ms a leaf and row here, none there by the creditor's word: many rows go there, though they have more
  // bytes than K and V.
  lent.set_share(1);
  attend(1000);
  EXPECT_EQ(borrowed.stats().shipped, 2u);
  const RemoteRun run = remote_run(shape, {0, 2}, 1000);
  EXPECT_GT(run.query_bytes + run.partial_bytes, run.kv_bytes);
  attend(1000);
  const auto cost = borrowed.cost(world.creditors[0].id);
  ASSERT_TRUE(cost);
  EXPECT_FALSE(ship_or_fetch(run, *cost, 0).ship());
  EXPECT_TRUE(ship_or_fetch(run, *cost, 1e-4).ship());
  EXPECT_EQ(borrowed.stats().shipped, 3u);
}

// Threads of both sides, and two that deliver.
TEST(FetchedThreads, AttendOnAThreadOfTheirOwn) {
  for (const Fetch fetch : {Fetch::kNever, Fetch::kAlways}) {
    const MemoryShape shape = memory_shape(ops::KvType::kBf16, 2, 2);
    MemoryWorld world(
        shape, 3, kManyLeaves, 7,
        {.max_in_flight_bytes = 300'000, .fetch = fetch, .max_fetch_bytes = shape.leaf_bytes() * 6},
        {.threads = 0}, /*own_thread=*/true);
    world.place_anywhere(3);
    world.creditors[1].memory->set_share(0);
    std::deque<RandomQuery> queries;
    std::atomic<int> open = 40;
    for (int i = 0; i < 40; ++i) {
      RandomQuery& query = queries.emplace_back(world, 4);
      const auto pieces = world.pieces(query.run, query.layer);
      world.borrowed->attend(
          {query.run.first, query.run.end, query.rows, query.q.data(), shape.q_dim(), pieces}, query.partials,
          [&](Status status) {
            ++query.outcome.calls;
            query.outcome.status = std::move(status);
            --open;
          });
    }
    const auto pump = [&](uint64_t seed) {
      Random random(seed);
      while (open > 0) {
        if (!world.network.deliver_one(random)) std::this_thread::yield();
        world.creditors[random.below(3)].memory->serve_one();
      }
    };
    std::thread other(pump, 1);
    pump(2);
    other.join();
    for (const RandomQuery& query : queries) EXPECT_TRUE(query.right(world));
    EXPECT_EQ(world.borrowed->stats().queries, 40u);
  }
}

TEST(FetchedThreads, TheEndEndsWhatIsAttendedTo) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const MemoryShape shape = memory_shape(ops::KvType::kBf16, 2, 2);
    MemoryWorld world(shape, 2, kManyLeaves, seed,
                      {.fetch = Fetch::kAlways, .max_fetch_bytes = shape.leaf_bytes() * 8}, {.threads = 0},
                      /*own_thread=*/true);
    world.place_anywhere(3);
    std::deque<RandomQuery> queries;
    for (int i = 0; i < 4; ++i) queries.emplace_back(world, 30).begin(world);
    for (uint64_t i = world.random.below(200); i > 0; --i) world.network.deliver_one(world.random);
    world.borrowed.reset();
    for (const RandomQuery& query : queries) {
      EXPECT_EQ(query.outcome.calls, 1);
      if (query.outcome.status.ok()) {
        EXPECT_TRUE(query.right(world));
      } else {
        EXPECT_EQ(query.partials, world.room(query.run, query.rows));
      }
    }
  }
}

#if defined(KVASIR_MUTANTS)
TEST(FetchedMutants, SubtreesInAnotherOrderAreSeen) {
  MemoryWorld world(memory_shape(ops::KvType::kBf16, 2, 2), 2, kManyLeaves, 8, {.fetch = Fetch::kAlways});
  world.place([](uint32_t leaf) { return static_cast<int>(leaf % 2); });
  const auto right = [&] {
    RandomQuery query(world, 3);
    query.run = {0, 8};
    query.partials = world.room(query.run, query.rows);
    query.begin(world);
    world.run();
    return query.right(world);
  };
  EXPECT_TRUE(right());
  ScopedMutant active(Mutant::kPeerSubtreeOrder);
  EXPECT_FALSE(right());
}
#endif

}  // namespace
}  // namespace kvasir::test
