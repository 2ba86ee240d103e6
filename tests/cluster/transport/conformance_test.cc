// What every transport does while all is well.
#include <algorithm>
#include <array>
#include <thread>

#include "cluster/transport/transport_fixture.h"

namespace kvasir::test {
namespace {

std::string kind_name(const testing::TestParamInfo<TransportKind>& info) {
  return info.param.name;
}

class TransportConformance : public TransportPairTest {};
INSTANTIATE_TEST_SUITE_P(All, TransportConformance, testing::ValuesIn(transport_kinds()), kind_name);

// 0 bytes to 4 MiB: below, at and above the sizes at which libraries change their ways.
std::vector<size_t> mixed_sizes(size_t count) {
  const std::array<size_t, 16> some{0,       1,    4096,    65'536, 4 << 20, 100, 262'143, 262'144,
                                    262'145, 8191, 1 << 20, 3,      131'072, 0,   300'000, 17};
  std::vector<size_t> sizes;
  for (size_t i = 0; i < count; ++i) sizes.push_back(some[(i * 7 + i / 16) % some.size()]);
  return sizes;
}

TEST_P(TransportConformance, MessagesArriveWholeAndInOrderWhateverTheirSizes) {
  const std::vector<size_t> sizes = mixed_sizes(120);
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    const Status sent = left_->send(right_id_, numbered(i, sizes[i]));
    ASSERT_TRUE(sent.ok()) << sent.message();
  }
  const auto got = take_messages(*right_, sizes.size());
  ASSERT_EQ(got.size(), sizes.size());
  uint64_t total = 0;
  for (uint32_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].from, left_id_);
    EXPECT_TRUE(is_numbered(got[i].bytes, i, sizes[i])) << "message " << i << " of " << sizes[i];
    total += sizes[i];
  }
  EXPECT_EQ(left_->stats().messages_sent, sizes.size());
  EXPECT_EQ(left_->stats().bytes_sent, total);
  EXPECT_EQ(right_->stats().messages_received, sizes.size());
  EXPECT_EQ(right_->stats().bytes_received, total);
  EXPECT_EQ(right_->stats().rejected_frames + right_->stats().unknown_frames, 0u);
}

TEST_P(TransportConformance, EachThreadsMessagesStayInOrder) {
  constexpr uint32_t kThreads = 4, kEach = 1500;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < kEach; ++i) {
        EXPECT_TRUE(left_->send(right_id_, numbered(t << 16 | i, 8 + (i % 50) * 13)).ok());
      }
    });
  }
  const auto got = take_messages(*right_, size_t{kThreads} * kEach);
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(got.size(), size_t{kThreads} * kEach);
  std::array<uint32_t, kThreads> next{};
  for (const PeerMessage& message : got) {
    uint32_t number = 0;
    ASSERT_GE(message.bytes.size(), sizeof(number));
    std::copy_n(message.bytes.begin(), sizeof(number), reinterpret_cast<std::byte*>(&number));
    const uint32_t t = number >> 16;
    ASSERT_LT(t, kThreads);
    ASSERT_EQ(number & 0xffff, next[t]++);
  }
}

TEST_P(TransportConformance, BothDirectionsAtOnce) {
  const std::vector<size_t> sizes = mixed_sizes(64);
  const auto exchange = [&](ClusterTransport& here, const PeerId& there) {
    for (uint32_t i = 0; i < sizes.size(); ++i) EXPECT_TRUE(here.send(there, numbered(i, sizes[i])).ok());
    const auto got = take_messages(here, sizes.size());
    ASSERT_EQ(got.size(), sizes.size());
    for (uint32_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].from, there);
      EXPECT_TRUE(is_numbered(got[i].bytes, i, sizes[i])) << i;
    }
  };
  std::thread other([&] { exchange(*right_, left_id_); });
  exchange(*left_, right_id_);
  other.join();
}

TEST_P(TransportConformance, SeveralPeers) {
  std::vector<std::unique_ptr<ClusterTransport>> others;
  for (uint64_t i = 0; i < 4; ++i) {
    const PeerId id{"other" + std::to_string(i), 100 + i};
    others.push_back(make(id));
    others.back()->introduce(left_id_, left_->address());
    left_->introduce(id, others.back()->address());
    ASSERT_TRUE(left_->send(id, numbered(static_cast<uint32_t>(i), 1000)).ok());
  }
  for (uint32_t i = 0; i < 4; ++i) {
    const auto got = take_messages(*others[i], 1);
    ASSERT_EQ(got.size(), 1u);
    EXPECT_TRUE(is_numbered(got[0].bytes, i, 1000));
    ASSERT_TRUE(others[i]->send(left_id_, numbered(i, 500)).ok());
  }
  const auto back = take_messages(*left_, 4);
  ASSERT_EQ(back.size(), 4u);
  for (const PeerMessage& message : back) {
    EXPECT_TRUE(is_numbered(message.bytes, static_cast<uint32_t>(message.from.epoch - 100), 500));
  }
  EXPECT_TRUE(take_lost(*left_, 0).empty());
}

TEST_P(TransportConformance, WaitEndsByMessageWakeOrTime) {
  const MonotonicClock clock;
  Nanos began = clock.now();
  left_->wait(30 * kNanosPerMilli);
  EXPECT_GE(clock.now() - began, 30 * kNanosPerMilli);

  left_->wake();  // ends the next one
  began = clock.now();
  left_->wait(kPatience);
  EXPECT_LT(clock.now() - began, kPatience / 2);
  left_->wait(30 * kNanosPerMilli);  // and only that
  EXPECT_GE(clock.now() - began, 30 * kNanosPerMilli);

  began = clock.now();
  std::thread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    left_->wake();
  });
  left_->wait(kPatience);
  waker.join();
  EXPECT_LT(clock.now() - began, kPatience / 2);

  began = clock.now();
  ASSERT_TRUE(right_->send(left_id_, numbered(1, 10)).ok());
  left_->wait(kPatience);
  EXPECT_LT(clock.now() - began, kPatience / 2);
  EXPECT_EQ(left_->receive().size(), 1u);
}

// Idle links, and links with little traffic, live: no deadline is theirs.
TEST_P(TransportConformance, AnIdleLinkStays) {
  TransportOptions options = options_of(GetParam(), {"brief", 3});
  // A busy machine may leave a thread without a core for tenths of a second.
  options.send_deadline = kNanosPerSecond;
  const auto brief = make_with(options);
  brief->introduce(right_id_, right_->address());
  right_->introduce(options.self, brief->address());
  for (uint32_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(brief->send(right_id_, numbered(i, 100)).ok());
    ASSERT_EQ(take_messages(*right_, 1).size(), 1u);
    EXPECT_TRUE(take_lost(*brief, 1200 * kNanosPerMilli).empty());
  }
  EXPECT_EQ(brief->stats().lost_peers, 0u);
}

TEST_P(TransportConformance, BothEndsNameOneWire) {
  EXPECT_EQ(left_->wire(), right_->wire());
  EXPECT_FALSE(left_->wire().empty());
}

}  // namespace
}  // namespace kvasir::test
