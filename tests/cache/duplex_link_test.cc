// A link between memories that moves in both directions at once: its order, its failures and its speed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "cache/memory_link_rig.h"

namespace kvasir::test {
namespace {

using ::testing::ElementsAre;
using DuplexLinkTest = MemoryLinkTest;

// A mover whose copies to one of the tiers stand still.
class StallingMover final : public Mover {
 public:
  explicit StallingMover(const std::span<std::byte>& stalled) : stalled_(stalled) {}
  Status move(std::span<const MovedRun> runs) override {
    for (const MovedRun& run : runs) {
      if (run.to >= stalled_.data() && run.to < stalled_.data() + stalled_.size()) {
        ++waiting_;
        go_.wait(false);
      }
      std::memcpy(run.to, run.from, run.bytes);
    }
    return {};
  }
  void wait_for_a_copy() const {
    while (waiting_ == 0) std::this_thread::yield();
  }
  // Whether so many copies stand still before long.
  bool copies_come(int count) const {
    for (int i = 0; i < 5000 && waiting_ < count; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return waiting_ == count;
  }
  void go() {
    go_ = true;
    go_.notify_all();
  }

 private:
  const std::span<std::byte> stalled_;
  std::atomic<int> waiting_{0};
  std::atomic<bool> go_{false};
};

// Of a duplex link, what stands still in one direction does not hold up the other; what has to wait for it
// does.
TEST_F(DuplexLinkTest, BothDirectionsMoveAtOnce) {
  const Bytes device_before = device_, host_before = host_;
  for (const bool out_stalls : {true, false}) {
    SCOPED_TRACE(out_stalls ? "to the host" : "to the device");
    device_ = device_before;
    host_ = host_before;
    StallingMover mover(out_stalls ? std::span(host_) : std::span(device_));
    MemoryLinkOptions o = options();
    o.mover = &mover;
    o.duplex = true;
    MemoryLink link(o, clock_);
    const auto moves = [&](uint64_t n, bool out, uint64_t at, std::vector<TransferId> after = {}) {
      const Segment segment = {out ? device(at) : host(at), out ? host(at + 4096) : device(at + 4096), 64};
      link.start({id(n), kOffload, std::move(after), {segment}});
    };
    moves(1, out_stalls, 0);
    moves(2, !out_stalls, 128);
    moves(3, !out_stalls, 256, {id(1)});
    mover.wait_for_a_copy();
    EXPECT_EQ(link.wait(id(2), kLong), TransferState::kDone);
    EXPECT_EQ(link.wait(id(1), 0), TransferState::kPending);
    EXPECT_EQ(link.wait(id(3), 0), TransferState::kPending);
    mover.go();
    EXPECT_EQ(link.wait(id(3), kLong), TransferState::kDone);
    EXPECT_EQ(link.wait(id(1), 0), TransferState::kDone);
    for (const auto& [out, at] :
         {std::pair(out_stalls, 0), std::pair(!out_stalls, 128), std::pair(!out_stalls, 256)}) {
      const Bytes& from = out ? device_before : host_before;
      const Bytes& to = out ? host_ : device_;
      EXPECT_TRUE(std::equal(from.begin() + at, from.begin() + at + 64, to.begin() + at + 4096)) << at;
    }
  }
}

// With two threads for each direction, so that a copy waits for the one before it while the other moves.
TEST_F(DuplexLinkTest, TwoUnitsOfATransferAreUnderWay) {
  const Bytes before = device_;
  StallingMover mover{std::span(host_)};
  MemoryLinkOptions o = options();
  o.mover = &mover;
  o.duplex = true;
  o.threads = 2;
  o.unit_bytes = 64;
  MemoryLink link(o, clock_);
  link.start({id(1), kOffload, {}, {{device(0), host(4096), 4 * 64}}});
  EXPECT_TRUE(mover.copies_come(2));
  EXPECT_EQ(link.wait(id(1), 0), TransferState::kPending);
  mover.go();
  EXPECT_EQ(link.wait(id(1), kLong), TransferState::kDone);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 4 * 64, host_.begin() + 4096));
}

// It ends when both are through; what is urgent in the one direction does not wait for it.
TEST_F(DuplexLinkTest, OfADuplexLinkATransferMayGoBothWays) {
  const Bytes device_before = device_, host_before = host_;
  StallingMover mover{std::span(host_)};
  MemoryLinkOptions o = options();
  o.mover = &mover;
  o.duplex = true;
  o.unit_bytes = 64;
  MemoryLink link(o, clock_);
  link.start({id(1), kOffload, {}, {{device(0), host(4096), 100}, {host(0), device(4096), 100}}});
  mover.wait_for_a_copy();
  link.start({id(2), kNow, {}, {{host(512), device(8192), 64}}});
  EXPECT_EQ(link.wait(id(2), kLong), TransferState::kDone);
  EXPECT_EQ(link.wait(id(1), 0), TransferState::kPending);
  mover.go();
  EXPECT_EQ(link.wait(id(1), kLong), TransferState::kDone);
  EXPECT_THAT(ids(link.completed()), ElementsAre(2, 1));
  EXPECT_TRUE(std::equal(device_before.begin(), device_before.begin() + 100, host_.begin() + 4096));
  EXPECT_TRUE(std::equal(host_before.begin(), host_before.begin() + 100, device_.begin() + 4096));
  EXPECT_EQ(link.stats().queued_bytes, 0U);
}

// Copies to some memory fail.
class FailingMover final : public Mover {
 public:
  explicit FailingMover(std::span<const std::byte> to) : to_(to) {}
  Status move(std::span<const MovedRun> runs) override {
    for (const MovedRun& run : runs) {
      if (run.to >= to_.data() && run.to < to_.data() + to_.size()) return error(ErrorCode::kIo, "no copy");
      std::memcpy(run.to, run.from, run.bytes);
    }
    return {};
  }

 private:
  const std::span<const std::byte> to_;
};

// A transfer fails with a copy of either direction, and what needs it fails; the other direction goes on.
TEST_F(DuplexLinkTest, OfADuplexLinkOneDirectionMayFail) {
  for (const bool out_fails : {true, false}) {
    SCOPED_TRACE(out_fails ? "to the host" : "to the device");
    FailingMover mover(out_fails ? std::span<const std::byte>(host_) : std::span<const std::byte>(device_));
    MemoryLinkOptions o = options();
    o.mover = &mover;
    o.duplex = true;
    o.unit_bytes = 64;
    MemoryLink link(o, clock_);
    const Segment out = {device(0), host(4096), 200}, in = {host(0), device(4096), 200};
    link.start({id(1), kOffload, {}, {out_fails ? out : in}});
    link.start({id(2), kOffload, {}, {out_fails ? in : out}});
    link.start({id(3), kOffload, {}, {out, in}});
    Transfer needs = {id(4), kOffload, {}, {out_fails ? in : out}};
    needs.needs = {id(1)};
    link.start(std::move(needs));
    link.start({id(5), kOffload, {id(1)}, {out_fails ? in : out}});
    std::map<uint64_t, ErrorCode> failures;
    for (uint64_t n = 1; n <= 5; ++n) (void)link.wait(id(n), kLong);
    for (const TransferDone& done : link.completed()) {
      if (!done.status.ok()) failures[raw(done.id)] = done.status.code();
    }
    EXPECT_EQ(failures, (std::map<uint64_t, ErrorCode>{
                            {1, ErrorCode::kIo}, {3, ErrorCode::kIo}, {4, ErrorCode::kUnavailable}}));
    const LinkStats stats = link.stats();
    EXPECT_EQ(stats.failed, 3U);
    EXPECT_EQ(stats.transfers, 5U);
    EXPECT_EQ(stats.queued_bytes, 0U);
  }
}

// What is under way or queued in either direction fails.
TEST_F(DuplexLinkTest, ADuplexLinkEnds) {
  std::vector<TransferDone> told;
  {
    MemoryLinkOptions o = slow();
    o.duplex = true;
    o.emulated_bytes_per_s = 1e3;
    MemoryLink link(o, clock_);
    std::mutex mutex;
    link.set_wake([&] {
      const std::lock_guard lock(mutex);
      for (TransferDone& d : link.completed()) told.push_back(std::move(d));
    });
    // Each direction has a half of the memories.
    link.start({id(1), kOffload, {}, {{device(0), host(0), kMiB / 2}}});
    link.start({id(2), kOffload, {}, {{host(kMiB / 2), device(kMiB / 2), kMiB / 2}}});
    link.start({id(3), kOffload, {}, {{host(kMiB / 2), device(kMiB / 2), 64}}});
    link.start({id(4), kOffload, {id(2)}, {{device(0), host(0), 64}}});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_THAT(ids(told), testing::UnorderedElementsAre(1, 2, 3, 4));
  for (const TransferDone& d : told) EXPECT_EQ(d.status.code(), ErrorCode::kUnavailable);
}

// In each direction, though the one has moved for some time when the other begins; it is busy as long as
// either moves.
TEST_F(DuplexLinkTest, ADuplexLinkKeepsItsRateInBothDirections) {
  constexpr double kRate = 50e6;
  // Each direction has a half of its own.
  device_ = random_bytes(2 * kMiB, 1);
  host_ = random_bytes(2 * kMiB, 2);
  bool kept = false;
  for (int attempt = 0; attempt < 8 && !kept; ++attempt) {
    MemoryLinkOptions o = options();
    o.emulated_bytes_per_s = kRate;
    o.unit_bytes = 32 * kKiB;
    o.duplex = true;
    MemoryLink link(o, clock_);
    const Nanos begin = clock_.now();
    for (uint64_t n = 0; n < 8; ++n) link.start({id(n), kOffload, {}, {{device(0), host(0), kMiB}}});
    EXPECT_EQ(link.wait(id(3), kLong), TransferState::kDone);
    for (uint64_t n = 8; n < 12; ++n) link.start({id(n), kOffload, {}, {{host(kMiB), device(kMiB), kMiB}}});
    for (const uint64_t last : {7, 11}) EXPECT_EQ(link.wait(id(last), kLong), TransferState::kDone);
    const double seconds = to_seconds(clock_.now() - begin);
    const LinkStats stats = link.stats();
    EXPECT_GE(seconds, 8 * static_cast<double>(kMiB) / kRate);
    EXPECT_LE(stats.busy_s, seconds);
    kept = seconds < 1.1 * 8 * static_cast<double>(kMiB) / kRate && stats.busy_s > 0.95 * seconds &&
           std::abs(stats.bytes_per_s - kRate) < 0.1 * kRate;
  }
  EXPECT_TRUE(kept);
}

// What a transfer moves to the device after its bytes to the host takes its time, at first and after a pause,
// and the pause is no time in which that direction moved.
TEST_F(DuplexLinkTest, ADuplexLinkKeepsItsRateInATransferThatTurnsRound) {
  constexpr double kRate = 1e7;
  double bytes_per_s = 0;
  for (int attempt = 0; attempt < 8 && bytes_per_s < 0.9 * kRate; ++attempt) {
    MemoryLinkOptions o = slow();
    o.duplex = true;
    MemoryLink link(o, clock_);
    for (uint64_t n = 0; n < 2; ++n) {
      const Nanos begin = clock_.now();
      link.start(
          {id(n), kNow, {}, {{device(0), host(0), 16 * kKiB}, {host(kMiB / 2), device(kMiB / 2), 400'000}}});
      EXPECT_EQ(link.wait(id(n), kLong), TransferState::kDone);
      EXPECT_GE(clock_.now() - begin, 40 * kNanosPerMilli) << n;
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
    }
    bytes_per_s = link.stats().bytes_per_s;
  }
  EXPECT_GE(bytes_per_s, 0.9 * kRate);
}

}  // namespace
}  // namespace kvasir::test
