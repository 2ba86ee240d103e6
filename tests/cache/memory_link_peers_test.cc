// The link to memory that peers have lent: its bytes, its order and its ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "cache/tiers/memory_link.h"

namespace kvasir {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using PeerBytes = std::vector<std::byte>;

constexpr Nanos kForEver = 100 * kNanosPerSecond;
constexpr uint64_t kOwnBytes = 64 * kKiB;  // of the host tier
constexpr uint64_t kLent = 64 * kKiB;      // by peers, behind it
constexpr uint64_t kOnDevice = 64 * kKiB;

// Memory of peers that answers at once, or when it is told.
class ToldPeers final : public PeerMemory {
 public:
  struct Operation {
    bool write = false;
    uint64_t at = 0;
    uint64_t bytes = 0;
    friend bool operator==(const Operation&, const Operation&) = default;
  };

  void write(uint64_t at, std::span<const std::byte> from, Done done) override {
    begin(
        {true, at, from.size()}, [this, at, from] { std::copy(from.begin(), from.end(), here(at)); },
        std::move(done));
  }
  void read(uint64_t at, std::span<std::byte> to, Done done) override {
    begin(
        {false, at, to.size()}, [this, at, to] { std::copy_n(here(at), to.size(), to.begin()); },
        std::move(done));
  }
  void attend(const RemoteQuery&, std::span<float>, Done done) override {
    done(error(ErrorCode::kUnsupported, "no attention here"));
  }

  // Ends the oldest operation that waits.
  void answer() {
    std::unique_lock lock(mutex_);
    auto [act, done] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    end(act, done);
  }
  size_t waiting() const {
    std::lock_guard lock(mutex_);
    return waiting_.size();
  }
  void wait_for(size_t waiting) const {
    while (this->waiting() < waiting) std::this_thread::yield();
  }
  std::vector<Operation> begun() const {
    std::lock_guard lock(mutex_);
    return begun_;
  }

  bool at_once = true;
  std::set<uint64_t> broken;  // where operations fail, by the byte where they begin
  PeerBytes memory = PeerBytes(kLent, std::byte{0});

 private:
  PeerBytes::iterator here(uint64_t at) { return memory.begin() + static_cast<ptrdiff_t>(at); }
  static void end(const std::function<void()>& act, const Done& done) {
    if (act) act();
    done(act ? Status() : error(ErrorCode::kUnavailable, "the peer is dead"));
  }
  void begin(const Operation& operation, std::function<void()> act, Done done) {
    KV_CHECK(operation.at + operation.bytes <= memory.size(), "{}", operation.at);
    if (broken.contains(operation.at)) act = nullptr;
    {
      std::lock_guard lock(mutex_);
      begun_.push_back(operation);
      if (!at_once) {
        waiting_.emplace_back(std::move(act), std::move(done));
        return;
      }
    }
    end(act, done);
  }

  mutable std::mutex mutex_;
  std::vector<Operation> begun_;
  std::deque<std::pair<std::function<void()>, Done>> waiting_;
};

class MemoryLinkPeers : public testing::Test {
 protected:
  MemoryLinkPeers() {
    Random random(3);
    for (PeerBytes* bytes : {&device_, &host_}) {
      for (std::byte& b : *bytes) b = static_cast<std::byte>(random.bits());
    }
  }
  MemoryLinkOptions options(size_t depth = 64) {
    MemoryLinkOptions o;
    o.memory = {std::span(device_), std::span(host_), {}};
    o.peers = &peers_;
    o.borrowed_begin = kOwnBytes;
    o.borrowed_bytes = kLent;
    o.peer_depth = depth;
    return o;
  }
  static MemoryAddress here(uint64_t offset) { return {offset, Tier::kDevice}; }
  static MemoryAddress own(uint64_t offset) { return {offset, Tier::kHost}; }
  static MemoryAddress there(uint64_t offset) { return {kOwnBytes + offset, Tier::kHost}; }
  // 64 bytes to the peers' byte 64 n.
  static Transfer out(uint64_t n, TransferPriority priority = TransferPriority::kOffload) {
    return {TransferId{n}, priority, {}, {{here(64 * n), there(64 * n), 64}}};
  }
  bool lies_there(uint64_t n, uint64_t bytes = 64) const {
    return std::memcmp(device_.data() + 64 * n, peers_.memory.data() + 64 * n, bytes) == 0;
  }
  static std::vector<uint64_t> in_order(const std::vector<TransferDone>& done) {
    std::vector<uint64_t> out;
    for (const TransferDone& d : done) out.push_back(raw(d.id));
    return out;
  }
  std::vector<uint64_t> places() const {
    std::vector<uint64_t> out;
    for (const auto& o : peers_.begun()) out.push_back(o.at / 64);
    return out;
  }

  MonotonicClock clock_;
  PeerBytes device_ = PeerBytes(kOnDevice);
  PeerBytes host_ = PeerBytes(kOwnBytes);
  ToldPeers peers_;
};

TEST_F(MemoryLinkPeers, BytesGoToTheirPlaceAndComeBack) {
  MemoryLink link(options(), clock_);
  const PeerBytes sent(device_.begin() + 1000, device_.begin() + 1300);
  const PeerBytes own_before = host_;
  link.start({TransferId{1}, TransferPriority::kOffload, {}, {{here(1000), there(5000), 300}}});
  EXPECT_EQ(link.wait(TransferId{1}, kForEver), TransferState::kDone);
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), peers_.memory.begin() + 5000));
  EXPECT_EQ(std::count(peers_.memory.begin(), peers_.memory.begin() + 5000, std::byte{0}), 5000);
  EXPECT_EQ(std::count(peers_.memory.begin() + 5300, peers_.memory.end(), std::byte{0}),
            static_cast<ptrdiff_t>(kLent) - 5300);
  link.start({TransferId{2}, TransferPriority::kNeededNow, {}, {{there(5000), here(9000), 200}}});
  EXPECT_EQ(link.wait(TransferId{2}, kForEver), TransferState::kDone);
  EXPECT_TRUE(std::equal(sent.begin(), sent.begin() + 200, device_.begin() + 9000));
  EXPECT_EQ(host_, own_before);
  EXPECT_THAT(peers_.begun(),
              ElementsAre(ToldPeers::Operation{true, 5000, 300}, ToldPeers::Operation{false, 5000, 200}));
  const LinkStats stats = link.stats();
  EXPECT_EQ(stats.bytes[index_of(Tier::kDevice)][index_of(Tier::kHost)], 300u);
  EXPECT_EQ(stats.bytes[index_of(Tier::kHost)][index_of(Tier::kDevice)], 200u);
  EXPECT_EQ(stats.transfers, 2u);
  EXPECT_EQ(stats.failed, 0u);
  EXPECT_EQ(stats.queued_bytes, 0u);
}

// Neighbours in borrowed memory may be different peers'.
TEST_F(MemoryLinkPeers, NeighboursThereStayApart) {
  const std::vector<Segment> both = {{here(0), there(0), 64}, {here(64), there(64), 64}};
  EXPECT_EQ(coalesce(both, kOwnBytes).size(), 2u);
  EXPECT_EQ(coalesce({both[0], {here(64), there(64), 0}, both[1]}, kOwnBytes).size(), 2u) << "empty ones go";
  EXPECT_EQ(coalesce({{there(0), here(0), 64}, {there(64), here(64), 64}}, kOwnBytes).size(), 2u);
  EXPECT_EQ(coalesce(both, kOwnBytes + 128).size(), 1u) << "there these are its own";
  EXPECT_EQ(coalesce({{here(0), own(kOwnBytes - 64), 64}, {here(64), there(0), 64}}, kOwnBytes).size(), 2u)
      << "across the border";
  MemoryLink link(options(), clock_);
  link.start({TransferId{1}, TransferPriority::kOffload, {}, both});
  EXPECT_EQ(link.wait(TransferId{1}, kForEver), TransferState::kDone);
  EXPECT_THAT(peers_.begun(),
              ElementsAre(ToldPeers::Operation{true, 0, 64}, ToldPeers::Operation{true, 64, 64}));
  EXPECT_TRUE(lies_there(0, 128));
}

TEST_F(MemoryLinkPeers, ATransferMayGoToItsOwnMemoryAndToPeers) {
  MemoryLink link(options(), clock_);
  std::vector<Segment> segments;
  for (uint64_t i = 0; i < 10; ++i) {
    segments.push_back({here(100 * i), i % 3 == 1 ? own(100 * i) : there(100 * i), 100});
  }
  link.start({TransferId{1}, TransferPriority::kOffload, {}, segments});
  EXPECT_EQ(link.wait(TransferId{1}, kForEver), TransferState::kDone);
  for (uint64_t i = 0; i < 10; ++i) {
    const std::byte* at = (i % 3 == 1 ? host_ : peers_.memory).data() + 100 * i;
    EXPECT_EQ(std::memcmp(at, device_.data() + 100 * i, 100), 0) << i;
  }
  EXPECT_EQ(peers_.begun().size(), 7u);
  EXPECT_EQ(link.stats().bytes[index_of(Tier::kDevice)][index_of(Tier::kHost)], 1000u);
  EXPECT_THAT(in_order(link.completed()), ElementsAre(1));
}

TEST_F(MemoryLinkPeers, AFailureEndsItsTransferAndNoOther) {
  peers_.broken = {64 * 2};
  MemoryLink link(options(/*depth=*/1), clock_);
  link.stand_still(true);
  Transfer three = out(1);
  three.segments.push_back({here(128), there(128), 64});
  three.segments.push_back({here(192), there(192), 64});
  link.start(three);
  link.start(out(10));
  Transfer needs = out(11);
  needs.needs = {TransferId{1}};
  link.start(needs);
  Transfer after = out(12);
  after.after = {TransferId{1}};
  link.start(after);
  link.stand_still(false);
  EXPECT_EQ(link.wait(TransferId{1}, kForEver), TransferState::kFailed);
  EXPECT_EQ(link.wait(TransferId{10}, kForEver), TransferState::kDone);
  EXPECT_EQ(link.wait(TransferId{11}, kForEver), TransferState::kFailed);
  EXPECT_EQ(link.wait(TransferId{12}, kForEver), TransferState::kDone);
  EXPECT_THAT(places(), ElementsAre(1, 2, 10, 12)) << "what follows the failure is of no use";
  EXPECT_TRUE(lies_there(10));
  EXPECT_TRUE(lies_there(12));
  EXPECT_FALSE(lies_there(3));
  for (const TransferDone& d : link.completed()) {
    if (raw(d.id) != 1) continue;
    EXPECT_EQ(d.status.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(d.status.message(), testing::HasSubstr("the peer is dead"));
  }
  const LinkStats stats = link.stats();
  EXPECT_EQ(stats.failed, 2u) << "the one, and the one that needed it";
  EXPECT_EQ(stats.cancelled, 0u);
  EXPECT_EQ(stats.queued_bytes, 0u);
  EXPECT_EQ(stats.bytes[index_of(Tier::kDevice)][index_of(Tier::kHost)], 3 * 64u) << "what arrived";
}

// The time in which two are on their way counts once, and what comes from peers does not count.
TEST_F(MemoryLinkPeers, TheSpeedToPeersIsThatOfAllThatIsOnItsWay) {
  peers_.at_once = false;
  MemoryLink link(options(), clock_);
  link.start({TransferId{9}, TransferPriority::kNeededNow, {}, {{there(0), here(9000), 64}}});
  peers_.wait_for(1);
  peers_.answer();
  EXPECT_EQ(link.wait(TransferId{9}, kForEver), TransferState::kDone);
  EXPECT_EQ(link.stats().peer_bytes_per_s, 0);
  const Nanos began = clock_.now();
  link.start(out(1));
  link.start(out(2));
  peers_.wait_for(2);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  peers_.answer();
  peers_.answer();
  for (const uint64_t id : {1, 2}) EXPECT_EQ(link.wait(TransferId{id}, kForEver), TransferState::kDone);
  const double speed = link.stats().peer_bytes_per_s;
  EXPECT_LE(speed, 128 / 0.02);
  EXPECT_GE(speed, 128 / to_seconds(clock_.now() - began));
}

// With several on their way the transfer ends, failed, when the last of them has ended.
TEST_F(MemoryLinkPeers, AFailedTransferEndsWhenNothingOfItIsOnItsWay) {
  peers_.at_once = false;
  peers_.broken = {64};
  MemoryLink link(options(/*depth=*/2), clock_);
  Transfer three = out(1);
  three.segments.push_back({here(128), there(128), 64});
  three.segments.push_back({here(192), there(192), 64});
  link.start(three);
  peers_.wait_for(2);
  peers_.answer();
  EXPECT_EQ(link.wait(TransferId{1}, 5 * kNanosPerMilli), TransferState::kPending);
  peers_.answer();
  EXPECT_EQ(link.wait(TransferId{1}, kForEver), TransferState::kFailed);
  EXPECT_EQ(peers_.begun().size(), 2u);
}

TEST_F(MemoryLinkPeers, TheMostUrgentGoesFirstThereToo) {
  MemoryLink link(options(/*depth=*/1), clock_);
  link.stand_still(true);
  link.start(out(1, TransferPriority::kOffload));
  link.start(out(2, TransferPriority::kPrefetch));
  link.start(out(3, TransferPriority::kNeededNow));
  link.start(out(4, TransferPriority::kOffload));
  Transfer behind = out(5, TransferPriority::kNeededNow);
  behind.after = {TransferId{4}};
  link.start(behind);
  link.start(out(6, TransferPriority::kNeededNow));
  link.stand_still(false);
  EXPECT_EQ(link.wait(TransferId{5}, kForEver), TransferState::kDone);
  EXPECT_THAT(places(), ElementsAre(3, 6, 2, 1, 4, 5));
  EXPECT_THAT(in_order(link.completed()), ElementsAre(3, 6, 2, 1, 4, 5));
}

// What was written by one is read by the next, which waits for it.
TEST_F(MemoryLinkPeers, WhatComesAfterFindsWhatWasBroughtThere) {
  MemoryLink link(options(), clock_);
  const PeerBytes first(device_.begin(), device_.begin() + 64);
  std::vector<TransferId> after;
  for (uint64_t i = 0; i < 40; ++i) {
    link.start(
        {TransferId{2 * i + 1}, TransferPriority::kOffload, after, {{here(64 * i), there(64 * i), 64}}});
    Transfer back = {
        TransferId{2 * i + 2}, TransferPriority::kNeededNow, {}, {{there(64 * i), here(64 * (i + 1)), 64}}};
    back.needs = {TransferId{2 * i + 1}};
    link.start(std::move(back));
    after = {TransferId{2 * i + 2}};
  }
  EXPECT_EQ(link.wait(TransferId{80}, kForEver), TransferState::kDone);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), device_.begin() + 64 * 40));
}

TEST_F(MemoryLinkPeers, SoManyAreOnTheirWayAndTheyHoldUpNoMemory) {
  peers_.at_once = false;
  MemoryLink link(options(/*depth=*/3), clock_);
  for (uint64_t n = 0; n < 10; ++n) link.start(out(n));
  peers_.wait_for(3);
  link.start({TransferId{20}, TransferPriority::kOffload, {}, {{here(0), own(0), 64}}});
  EXPECT_EQ(link.wait(TransferId{20}, kForEver), TransferState::kDone) << "while no peer answers";
  link.cancel(TransferId{0});
  link.cancel(TransferId{9});
  EXPECT_EQ(link.wait(TransferId{9}, 0), TransferState::kFailed);
  EXPECT_EQ(link.wait(TransferId{0}, 0), TransferState::kPending) << "it has begun";
  for (uint64_t n = 0; n < 9; ++n) {
    EXPECT_LE(peers_.waiting(), 3u);
    peers_.wait_for(std::min<size_t>(3, 9 - n));
    peers_.answer();
  }
  for (uint64_t n = 0; n < 9; ++n) EXPECT_EQ(link.wait(TransferId{n}, kForEver), TransferState::kDone);
  EXPECT_EQ(peers_.begun().size(), 9u);
}

TEST_F(MemoryLinkPeers, StandingStillNothingBegins) {
  MemoryLink link(options(), clock_);
  link.stand_still(true);
  link.start(out(1));
  EXPECT_EQ(link.wait(TransferId{1}, 5 * kNanosPerMilli), TransferState::kPending);
  EXPECT_THAT(peers_.begun(), IsEmpty());
  EXPECT_EQ(link.stats().queued_bytes, 64u);
  link.stand_still(false);
  EXPECT_EQ(link.wait(TransferId{1}, kForEver), TransferState::kDone);
}

TEST_F(MemoryLinkPeers, ALinkEndsWhenWhatIsOnItsWayHasEnded) {
  peers_.at_once = false;
  std::vector<TransferDone> told;
  auto link = std::make_unique<MemoryLink>(options(/*depth=*/2), clock_);
  std::mutex mutex;
  link->set_wake([&, l = link.get()] {
    std::lock_guard lock(mutex);
    for (TransferDone& d : l->completed()) told.push_back(std::move(d));
  });
  link->start(out(1));
  Transfer two = out(2);
  two.segments.push_back({here(192), there(192), 64});
  link->start(two);
  link->start(out(4));
  peers_.wait_for(2);
  std::atomic<bool> ended{false};
  std::thread ends([&] {
    link.reset();
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(ended) << "a peer still reads this memory";
  peers_.answer();
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(ended);
  peers_.answer();
  ends.join();
  EXPECT_EQ(peers_.begun().size(), 2u) << "nothing more was begun";
  EXPECT_EQ(peers_.waiting(), 0u);
  std::map<uint64_t, bool> how;
  for (const TransferDone& d : told) how[raw(d.id)] = d.status.ok();
  EXPECT_THAT(how, ElementsAre(std::pair(1, true), std::pair(2, false), std::pair(4, false)));
}

// Out, and back to another place, from several threads; a thread of the peer's answers.
TEST_F(MemoryLinkPeers, AllThatGoesThereComesBack) {
  peers_.at_once = false;
  constexpr uint64_t kStarters = 3, kEach = 60;
  constexpr uint64_t kBytes = 96;
  const PeerBytes sent(device_.begin(), device_.begin() + kStarters * kEach * kBytes);
  std::atomic<bool> over{false};
  std::thread answers([&] {
    while (!over) {
      if (peers_.waiting() > 0)
        peers_.answer();
      else
        std::this_thread::yield();
    }
  });
  {
    MemoryLink link(options(/*depth=*/5), clock_);
    std::vector<std::thread> starters;
    for (uint64_t s = 0; s < kStarters; ++s) {
      starters.emplace_back([&, s] {
        for (uint64_t i = 0; i < kEach; ++i) {
          const uint64_t n = s * kEach + i;
          const uint64_t at = n * kBytes;
          // The first half goes to peers, the other to its own memory.
          link.start({TransferId{2 * n + 1},
                      TransferPriority::kOffload,
                      {},
                      {{here(at), there(at), kBytes / 2}, {here(at + kBytes / 2), own(at), kBytes / 2}}});
          Transfer back = {TransferId{2 * n + 2},
                           TransferPriority::kNeededNow,
                           {},
                           {{there(at), here(at + kOnDevice / 2), kBytes / 2},
                            {own(at), here(at + kOnDevice / 2 + kBytes / 2), kBytes / 2}}};
          back.needs = {TransferId{2 * n + 1}};
          link.start(std::move(back));
        }
      });
    }
    for (std::thread& t : starters) t.join();
    for (uint64_t n = 0; n < kStarters * kEach; ++n) {
      EXPECT_EQ(link.wait(TransferId{2 * n + 2}, kForEver), TransferState::kDone);
    }
    EXPECT_EQ(link.stats().bytes[index_of(Tier::kDevice)][index_of(Tier::kHost)], sent.size());
    EXPECT_EQ(link.stats().bytes[index_of(Tier::kHost)][index_of(Tier::kDevice)], sent.size());
    EXPECT_EQ(link.completed().size(), 2 * kStarters * kEach);
  }
  over = true;
  answers.join();
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), device_.begin() + kOnDevice / 2));
}

using MemoryLinkPeersDeathTest = MemoryLinkPeers;

TEST_F(MemoryLinkPeersDeathTest, SegmentsLieInWhatIsBorrowedAndGoToTheDevice) {
  const auto start = [this](Segment segment) {
    MemoryLink link(options(), clock_);
    link.start({TransferId{7}, TransferPriority::kNeededNow, {}, {segment}});
  };
  EXPECT_DEATH(start({here(0), there(kLent - 63), 64}), "transfer 7: 64 bytes at 65473 of 65536 borrowed");
  EXPECT_DEATH(start({own(0), there(0), 64}), "transfer 7: 64 bytes at 0 of 65536 borrowed");
  EXPECT_DEATH(start({there(0), there(64), 64}), "transfer 7");
  EXPECT_DEATH(start({here(0), own(kOwnBytes - 32), 64}), "transfer 7: 64 bytes at 65504");
}

}  // namespace
}  // namespace kvasir
