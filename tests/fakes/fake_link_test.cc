// The link in memory: bytes that move, spoil, wait for others and fail as the test says.
#include "fakes/fake_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace kvasir::test {
namespace {

Transfer transfer(uint64_t id, TransferPriority priority = TransferPriority::kPrefetch) {
  Transfer t;
  t.id = TransferId{id};
  t.priority = priority;
  return t;
}

TEST(FakeLink, EndsTheMostUrgentFirstAndStampsTimes) {
  VirtualClock clock;
  FakeLink link(clock);
  link.start(transfer(1, TransferPriority::kOffload));
  clock.advance(5);
  link.start(transfer(2));
  link.start(transfer(3, TransferPriority::kNeededNow));
  link.start(transfer(4));
  EXPECT_TRUE(link.completed().empty());
  clock.advance(10);
  EXPECT_EQ(link.complete_all(), 4u);
  const auto done = link.completed();
  ASSERT_EQ(done.size(), 4u);
  EXPECT_EQ(done[0].id, TransferId{3});
  EXPECT_EQ(done[1].id, TransferId{2});
  EXPECT_EQ(done[2].id, TransferId{4});
  EXPECT_EQ(done[3].id, TransferId{1});
  EXPECT_EQ(done[3].started, 0);
  EXPECT_EQ(done[0].started, 5);
  EXPECT_EQ(done[0].ended, 15);
  EXPECT_TRUE(link.completed().empty());
}

// Two tiers of a few bytes.
struct SmallMemories {
  FakeLink::Memories spans() { return {std::span(device), std::span(host), {}}; }
  std::vector<std::byte> device = std::vector<std::byte>(16, std::byte{1});
  std::vector<std::byte> host = std::vector<std::byte>(16, std::byte{2});
};

constexpr std::byte kSpoilt{0xEE};

// Eight bytes from the start of a tier to a place in another.
Transfer eight(uint64_t id, Tier from, Tier to, uint64_t offset, std::vector<TransferId> after = {}) {
  Transfer t = transfer(id);
  t.after = std::move(after);
  t.segments.push_back({{0, from}, {offset, to}, 8});
  return t;
}

TEST(FakeLink, MovesBytesAtTheEndAndSpoilsTheirDestinationBefore) {
  VirtualClock clock;
  SmallMemories memories;
  FakeLink link(clock, memories.spans());
  link.start(eight(1, Tier::kHost, Tier::kDevice, 4));
  EXPECT_EQ(memories.device[3], std::byte{1});
  EXPECT_EQ(memories.device[4], kSpoilt);
  EXPECT_EQ(memories.device[11], kSpoilt);
  EXPECT_EQ(memories.device[12], std::byte{1});
  EXPECT_EQ(link.stats().queued_bytes, 8u);
  memories.host[0] = std::byte{7};  // the source is read at the end
  EXPECT_TRUE(link.complete_next());
  EXPECT_EQ(memories.device[4], std::byte{7});
  EXPECT_EQ(memories.device[11], std::byte{2});
  EXPECT_EQ(link.stats().bytes[1][0], 8u);
  EXPECT_EQ(link.stats().queued_bytes, 0u);
}

TEST(FakeLink, WhatIsToComeAfterAnotherNeitherBeginsNorSpoilsBeforeItsEnd) {
  VirtualClock clock;
  SmallMemories memories;
  FakeLink link(clock, memories.spans());
  link.start(eight(1, Tier::kDevice, Tier::kHost, 8));
  Transfer second = eight(2, Tier::kHost, Tier::kDevice, 0, {TransferId{1}});
  second.priority = TransferPriority::kNeededNow;
  link.start(second);
  EXPECT_EQ(memories.device[0], std::byte{1});  // the first one still reads it
  EXPECT_TRUE(link.complete_next());
  EXPECT_EQ(memories.host[8], std::byte{1});
  EXPECT_EQ(memories.device[0], kSpoilt);
  EXPECT_TRUE(link.complete_next());
  EXPECT_EQ(memories.device[0], std::byte{2});
  // An end is an end, also of one that fails.
  link.start(eight(3, Tier::kDevice, Tier::kHost, 0));
  link.start(eight(4, Tier::kHost, Tier::kDevice, 0, {TransferId{3}, TransferId{99}}));
  EXPECT_TRUE(link.complete_next(error(ErrorCode::kIo, "lost")));
  EXPECT_EQ(memories.host[0], kSpoilt);
  EXPECT_TRUE(link.complete_next());
  EXPECT_EQ(link.completed()[2].status.message(), "lost");
}

TEST(FakeLink, WaitingEndsWhatIsMoreUrgentToo) {
  VirtualClock clock;
  FakeLink link(clock);
  link.start(transfer(1, TransferPriority::kNeededNow));
  link.start(transfer(2));
  link.start(transfer(3));
  EXPECT_EQ(link.wait(TransferId{2}, 0), TransferState::kPending) << "a question moved the link";
  EXPECT_EQ(link.wait(TransferId{2}, INT64_MAX), TransferState::kDone);
  EXPECT_EQ(link.queued(), 1u);
  EXPECT_EQ(link.completed().size(), 2u);
  EXPECT_EQ(link.wait(TransferId{1}, 0), TransferState::kDone);
  EXPECT_EQ(link.wait(TransferId{99}, 0), TransferState::kDone);
  EXPECT_EQ(clock.now(), 0);
}

TEST(FakeLink, AWaitInVainTakesItsTime) {
  VirtualClock clock;
  FakeLink link(clock);
  link.start(transfer(1));
  link.stall(true);
  EXPECT_FALSE(link.complete_next());
  EXPECT_EQ(link.wait(TransferId{1}, 30), TransferState::kPending);
  EXPECT_EQ(clock.now(), 30);
  link.stall(false);
  link.be_late(1.0, 0);
  EXPECT_EQ(link.wait(TransferId{1}, 12), TransferState::kPending);
  EXPECT_EQ(clock.now(), 42);
  EXPECT_EQ(link.wait(TransferId{1}, INT64_MAX), TransferState::kDone);
  link.be_late(0.5, 1);
  int late = 0;
  for (uint64_t id = 2; id < 102; ++id) {
    link.start(transfer(id));
    if (link.wait(TransferId{id}, 1) == TransferState::kPending) ++late;
  }
  EXPECT_GT(late, 25);
  EXPECT_LT(late, 75);
}

TEST(FakeLink, RemembersWhatFailedOrWasCancelled) {
  VirtualClock clock;
  SmallMemories memories;
  FakeLink link(clock, memories.spans());
  for (uint64_t id = 1; id <= 3; ++id) link.start(eight(id, Tier::kHost, Tier::kDevice, 0));
  int woken = 0;
  link.set_wake([&] { ++woken; });
  link.fail(TransferId{2});
  link.cancel(TransferId{3});
  link.cancel(TransferId{99});
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(link.complete_all(), 2u);
  EXPECT_EQ(woken, 3);
  const auto done = link.completed();
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].status.code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(done[1].status.ok());
  EXPECT_EQ(done[2].status.code(), ErrorCode::kIo);
  EXPECT_EQ(link.wait(TransferId{1}, 0), TransferState::kDone);
  EXPECT_EQ(link.wait(TransferId{2}, 0), TransferState::kFailed);
  EXPECT_EQ(link.wait(TransferId{3}, INT64_MAX), TransferState::kFailed);
  EXPECT_EQ(link.stats().transfers, 3u);
  EXPECT_EQ(link.stats().failed, 1u);
  EXPECT_EQ(link.stats().cancelled, 1u);
  EXPECT_EQ(link.stats().bytes[1][0], 8u);
  link.fail_share(1.0, 0);
  link.start(eight(4, Tier::kHost, Tier::kDevice, 0));
  EXPECT_EQ(link.wait(TransferId{4}, INT64_MAX), TransferState::kFailed);
}

TEST(FakeLink, EndsSomeInAnOrderThatIsAllowed) {
  VirtualClock clock;
  FakeLink link(clock);
  Random random(5);
  std::vector<TransferId> order;
  for (uint64_t id = 1; id <= 60; ++id) {
    Transfer t = transfer(id);
    if (id % 2 == 0) t.after = {TransferId{id - 1}};
    link.start(t);
  }
  int calls = 0;
  for (; link.queued() > 0; ++calls) {
    link.complete_some(random);
    for (const TransferDone& d : link.completed()) order.push_back(d.id);
  }
  EXPECT_GT(calls, 2);
  ASSERT_EQ(order.size(), 60u);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  const auto place = [&](uint64_t id) { return std::find(order.begin(), order.end(), TransferId{id}); };
  for (uint64_t id = 2; id <= 60; id += 2) EXPECT_LT(place(id - 1), place(id)) << id;
  link.start(transfer(100));
  link.stall(true);
  EXPECT_EQ(link.complete_some(random), 0u);
}

}  // namespace
}  // namespace kvasir::test
