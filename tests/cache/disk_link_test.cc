// The link and the disk: pieces that move, their order, and which delay others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

#include "cache/disk_link_world.h"

namespace kvasir {
namespace {

using testing::ElementsAre;
using namespace test;

TEST_F(DiskLinkTest, PiecesGoOutAndComeBack) {
  open(false);
  MemoryLink link(options(), clock_);
  const Bytes before = device_;
  // Pieces of a transfer whose places follow each other at both ends stay pieces.
  std::vector<Segment> out;
  std::vector<Segment> back;
  for (uint64_t i = 0; i < 10; ++i) {
    out.push_back({device(i * 8192), disk(i * 8192), 8192});
    back.push_back({disk((9 - i) * 8192), host(100 + i * 8192), 8192});
  }
  link.start({id(1), kOffload, {}, out});
  link.start({id(2), kNow, {id(1)}, back, {id(1)}});
  EXPECT_EQ(link.wait(id(2), kLong), TransferState::kDone);
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(std::memcmp(&host_[100 + i * 8192], &before[(9 - i) * 8192], 8192), 0) << i;
  }
  EXPECT_EQ(device_, before);
  const LinkStats stats = link.stats();
  EXPECT_EQ(stats.bytes[size_t(Tier::kDevice)][size_t(Tier::kDisk)], 81920);
  EXPECT_EQ(stats.bytes[size_t(Tier::kDisk)][size_t(Tier::kHost)], 81920);
  EXPECT_EQ(stats.transfers, 2);
  EXPECT_EQ(stats.failed, 0);
  EXPECT_EQ(stats.queued_bytes, 0);
  EXPECT_GT(stats.disk_busy_s, 0);
  EXPECT_GT(stats.disk_bytes_per_s, 0);
  EXPECT_EQ(stats.busy_s, 0);
  EXPECT_EQ(stats.bytes_per_s, 0);
  EXPECT_EQ(file_->stats().writes, 10);
  for (const TransferDone& d : link.completed()) EXPECT_LT(d.started, d.ended);
}

TEST_F(DiskLinkTest, ATransferMayHaveBothKindsOfSegments) {
  for (int threads : {1, 2}) {
    open(false);
    MemoryLinkOptions o = options();
    o.threads = threads;
    o.unit_bytes = 1000;
    MemoryLink link(o, clock_);
    const Bytes before = device_;
    link.start({id(1),
                kPrefetch,
                {},
                {{device(0), host(0), 5000},
                 {device(5000), disk(0), 5000},
                 {device(10000), host(10000), 5000},
                 {device(15000), disk(8192), 5000}}});
    link.start({id(2), kPrefetch, {}, {{device(50000), disk(40960), 1}, {device(50001), host(50001), 3000}}});
    link.start(
        {id(3),
         kPrefetch,
         {id(1)},
         {{disk(0), host(5000), 5000}, {disk(8192), host(15000), 5000}, {host(0), device(20000), 100}}});
    EXPECT_EQ(link.wait(id(3), kLong), TransferState::kDone);
    EXPECT_EQ(link.wait(id(2), kLong), TransferState::kDone);
    EXPECT_EQ(std::memcmp(host_.data(), before.data(), 20000), 0);
    EXPECT_EQ(std::memcmp(&device_[20000], before.data(), 100), 0);
    EXPECT_EQ(std::memcmp(&host_[50001], &before[50001], 3000), 0);
    // Alone: nothing else wakes the disk's thread.
    link.start({id(4), kPrefetch, {}, {{device(0), host(0), 10}, {device(60000), disk(40960), 3000}}});
    EXPECT_EQ(link.wait(id(4), kLong), TransferState::kDone);
  }
}

// Through all tiers and back, each hop of what the one before it brought.
TEST_F(DiskLinkTest, WhatWaitsForOthersBeginsWhenTheyHaveEnded) {
  open(false);
  MemoryLink link(options(), clock_);
  const Bytes first(device_.begin(), device_.begin() + 5000);
  std::vector<TransferId> after;
  uint64_t n = 0;
  const auto hop = [&](MemoryAddress from, MemoryAddress to) {
    link.start({id(++n), static_cast<TransferPriority>(n % 3), after, {{from, to, 5000}}});
    after = {id(n)};
  };
  for (uint64_t i = 0; i < 30; ++i) {
    hop(device(i * 5000), disk(i * 8192));
    hop(disk(i * 8192), host(i * 5000));
    hop(host(i * 5000), device((i + 1) * 5000));
  }
  EXPECT_EQ(link.wait(id(n), kLong), TransferState::kDone);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), device_.begin() + 30 * 5000));
}

TEST_F(DiskLinkTest, AsManyAreWithTheDeviceAsTheDepthSaysAndTheMostUrgentAreNext) {
  open(true, 2);
  MemoryLink link(options(), clock_);
  fake_.hold();
  for (uint64_t n = 0; n < 4; ++n) link.start(out(n, kOffload));
  wait_for([&] { return fake_.in_flight() == 2; });
  link.start(out(4, kPrefetch));
  link.start(out(5, kNow));
  link.start(out(6, kOffload));
  link.cancel(id(3));  // waits still
  link.cancel(id(0));  // is with the device, and does not notice
  EXPECT_EQ(link.wait(id(3), 0), TransferState::kFailed);
  for (size_t n = 3; n <= 6; ++n) {
    fake_.let_go(1);
    wait_for([&] { return fake_.queued().size() == n; });
  }
  fake_.let_all_go();
  for (uint64_t n : {0, 1, 2, 4, 5, 6}) EXPECT_EQ(link.wait(id(n), kLong), TransferState::kDone) << n;
  EXPECT_THAT(fake_.queued(), ElementsAre(place(0), place(1), place(5), place(4), place(2), place(6)));
  EXPECT_EQ(fake_.most_in_flight(), 2);
}

TEST_F(DiskLinkTest, ALateDiskDoesNotHoldUpMemoryNorMemoryTheDisk) {
  open(true, 2);
  {
    MemoryLink link(options(), clock_);
    fake_.hold();
    for (uint64_t n = 0; n < 8; ++n) link.start(out(n, kNow));
    for (uint64_t n = 8; n < 40; ++n) {
      link.start({id(n), kOffload, {}, {{device(n * 8192), host(n * 8192), 8192}}});
    }
    EXPECT_EQ(link.wait(id(39), kLong), TransferState::kDone);
    EXPECT_EQ(link.wait(id(0), 0), TransferState::kPending);
    fake_.let_all_go();
    EXPECT_EQ(link.wait(id(7), kLong), TransferState::kDone);
  }
  MemoryLinkOptions slow = options();
  slow.emulated_bytes_per_s = 1e3;
  MemoryLink link(slow, clock_);
  link.start({id(0), kNow, {}, {{device(0), host(0), kMiB}}});  // would take a quarter of an hour
  for (uint64_t n = 1; n < 40; ++n) link.start(out(n, kOffload));
  for (uint64_t n = 1; n < 40; ++n) EXPECT_EQ(link.wait(id(n), kLong), TransferState::kDone);
  EXPECT_EQ(link.wait(id(0), 0), TransferState::kPending);
}

TEST_F(DiskLinkTest, NothingBeginsWhileTheLinkStandsStill) {
  open(true, 4);
  MemoryLink link(options(), clock_);
  link.stand_still(true);
  link.start(out(1, kNow));
  EXPECT_EQ(link.wait(id(1), 20 * kNanosPerMilli), TransferState::kPending);
  EXPECT_TRUE(fake_.queued().empty());
  link.stand_still(false);
  EXPECT_EQ(link.wait(id(1), kLong), TransferState::kDone);
}

TEST_F(DiskLinkTest, WhenTheLinkEndsWhatIsWithTheDeviceEndsFirst) {
  open(true, 2);
  std::vector<TransferDone> told;
  std::mutex mutex;
  std::thread later;
  {
    MemoryLink link(options(), clock_);
    link.set_wake([&] {
      std::lock_guard lock(mutex);
      for (TransferDone& d : link.completed()) told.push_back(std::move(d));
    });
    fake_.hold();
    for (uint64_t n = 0; n < 5; ++n) link.start(out(n, kPrefetch));
    link.start({id(5), kNow, {id(4)}, {{device(0), host(0), 100}}});
    wait_for([&] { return fake_.in_flight() == 2; });
    later = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      fake_.let_all_go();
    });
  }
  EXPECT_EQ(fake_.in_flight(), 0);
  later.join();
  ASSERT_EQ(told.size(), 6);
  for (const TransferDone& d : told) EXPECT_EQ(d.status.ok(), raw(d.id) < 2) << raw(d.id);
  EXPECT_EQ(fake_.queued().size(), 2);
}

TEST_F(DiskLinkTest, WhatIsNoPieceIsABug) {
  open(false);
  MemoryLink link(options(), clock_);
  MemoryLinkOptions without = options();
  without.disk = nullptr;
  MemoryLink no_disk(without, clock_);
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  // A child that dies leaves its directory behind: in this one, which the test removes.
  const TestDirectory of_children;
  ::setenv("TEST_TMPDIR", (of_children.path() + "/").c_str(), 1);
  const auto start = [&](Segment s) { link.start({id(1), kNow, {}, {s}}); };
  EXPECT_DEATH(start({disk(0), disk(8192), 100}), "from disk to disk");
  EXPECT_DEATH(start({device(0), disk(100), 100}), "100 bytes at 100");
  EXPECT_DEATH(start({device(0), disk(kDiskBytes - 4096), 4097}), "of the disk tier's");
  EXPECT_DEATH(no_disk.start({id(1), kNow, {}, {{device(0), disk(0), 100}}}), "of the disk tier's");
  ::unsetenv("TEST_TMPDIR");
}

// Pieces between random places of three tiers, many at once, ordered after the last use of a place. Then
// every place holds what the same moves do to a model; with faults, what a transfer that ended well brought
// is right and nothing else has changed.
class DiskLinkStress : public DiskLinkTest, public testing::WithParamInterface<std::tuple<bool, double>> {};

TEST_P(DiskLinkStress, EveryPlaceHoldsWhatAModelSays) {
  const auto [fake, chance] = GetParam();
  constexpr uint64_t kPlaces = 40;
  constexpr uint64_t kMoves = 1500;
  open(fake, 8);
  if (chance > 0) fake_.fail_at_random(7, chance);
  Random random(11);
  std::vector<uint64_t> sizes;  // one for each place of every tier, so that anything can move anywhere
  for (uint64_t i = 0; i < 4; ++i) sizes.push_back(1 + random.below(20'000));
  const auto size_of = [&](uint64_t i) { return sizes[i % sizes.size()]; };
  struct Move {
    Tier from, to;
    uint64_t source, target;
  };
  std::vector<Move> moves;
  std::array<std::vector<TransferId>, 3> last;  // user of each place; after it comes the next
  for (auto& l : last) l.assign(kPlaces, id(0));
  std::array<std::vector<std::optional<Bytes>>, 3> model;
  const auto at = [&](Tier tier, uint64_t i) {
    return (tier == Tier::kDevice ? device_ : host_).data() + 3 + i * 20'480;
  };
  for (Tier tier : {Tier::kDevice, Tier::kHost}) {
    for (uint64_t i = 0; i < kPlaces; ++i) {
      model[size_t(tier)].emplace_back(Bytes(at(tier, i), at(tier, i) + size_of(i)));
    }
  }
  model[size_t(Tier::kDisk)].resize(kPlaces);
  std::vector<bool> ended_well(kMoves + 1);
  {
    MemoryLinkOptions o = options();
    o.threads = 2;
    MemoryLink link(o, clock_);
    for (uint64_t n = 1; n <= kMoves; ++n) {
      Move m{Tier(random.below(3)), Tier(random.below(3)), random.below(kPlaces), 0};
      if (m.from == Tier::kDisk && m.to == Tier::kDisk) m.to = Tier::kDevice;
      do {
        m.target = random.below(kPlaces / 4) * 4 + m.source % 4;
      } while (m.from == m.to && m.source == m.target);
      const auto address = [](Tier tier, uint64_t i) {
        return MemoryAddress{tier == Tier::kDisk ? i * 20'480 : 3 + i * 20'480, tier};
      };
      auto& user = last[size_t(m.from)][m.source];
      auto& other = last[size_t(m.to)][m.target];
      link.start({id(n),
                  static_cast<TransferPriority>(random.below(3)),
                  {user, other},
                  {{address(m.from, m.source), address(m.to, m.target), size_of(m.source)}}});
      user = other = id(n);
      moves.push_back(m);
    }
    for (uint64_t n = 1; n <= kMoves; ++n) {
      const TransferState state = link.wait(id(n), kLong);
      EXPECT_NE(state, TransferState::kPending);
      ended_well[n] = state == TransferState::kDone;
    }
    EXPECT_EQ(link.stats().queued_bytes, 0);
  }
  uint64_t failed = 0;
  uint64_t unwritten = 0;
  for (uint64_t n = 1; n <= kMoves; ++n) {
    const Move& m = moves[n - 1];
    const std::optional<Bytes>& source = model[size_t(m.from)][m.source];
    std::optional<Bytes>& target = model[size_t(m.to)][m.target];
    if (ended_well[n]) {
      ASSERT_TRUE(source) << "move " << n << " reads what is not there";
      target = source;
    } else {
      ++failed;
      unwritten += !source;
      EXPECT_TRUE(m.from == Tier::kDisk || m.to == Tier::kDisk);
      if (m.to == Tier::kDisk) target.reset();
    }
  }
  for (Tier tier : {Tier::kDevice, Tier::kHost}) {
    for (uint64_t i = 0; i < kPlaces; ++i) {
      const Bytes now(at(tier, i), at(tier, i) + size_of(i));
      EXPECT_TRUE(now == *model[size_t(tier)][i]) << name(tier) << " " << i;
    }
  }
  const DiskStats stats = file_->stats();
  EXPECT_EQ(stats.read_errors + stats.short_reads + stats.checksum_mismatches + stats.write_errors, failed);
  if (chance == 0) {
    EXPECT_EQ(failed, unwritten);
  } else {
    EXPECT_GT(fake_.faults(), 20);
    EXPECT_GT(failed, unwritten);
  }
  EXPECT_GT(stats.reads, 100);
  EXPECT_GT(stats.writes, 100);
}

INSTANTIATE_TEST_SUITE_P(Disks, DiskLinkStress,
                         testing::Values(std::tuple(false, 0.0), std::tuple(true, 0.0),
                                         std::tuple(true, 0.1)));

}  // namespace
}  // namespace kvasir
