// Senders that transports do not hear, and messages that they no longer take.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "cluster/transport/socket_address.h"
#include "cluster/transport/transport_fixture.h"
#include "support/take.h"

namespace kvasir::test {
namespace {

std::string limited_kind_name(const testing::TestParamInfo<TransportKind>& info) {
  return info.param.name;
}

class TransportLimits : public TransportTest {
 protected:
  const PeerId left_id_{"left", 11};
  const PeerId right_id_{"right", 22};
};
INSTANTIATE_TEST_SUITE_P(All, TransportLimits, testing::ValuesIn(transport_kinds()), limited_kind_name);

TEST_P(TransportLimits, OfAStrangerNothingIsReceived) {
  const auto left = make(left_id_), right = make(right_id_);
  EXPECT_EQ(left->send(right_id_, {}).code(), ErrorCode::kUnavailable);
  left->introduce(right_id_, right->address());
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(left->send(right_id_, numbered(i, 100 + i * 300'000)).ok());
  ASSERT_TRUE(eventually([&] { return right->stats().unknown_frames == 3; }));
  EXPECT_TRUE(right->receive().empty());
  EXPECT_EQ(right->stats().messages_received, 0u);
  // Of the same life under another epoch neither.
  right->introduce({"left", 12}, left->address());
  ASSERT_TRUE(left->send(right_id_, numbered(3, 50)).ok());
  ASSERT_TRUE(eventually([&] { return right->stats().unknown_frames == 4; }));
  EXPECT_TRUE(right->receive().empty());
  // From its introduction on it is heard.
  right->introduce(left_id_, left->address());
  ASSERT_TRUE(left->send(right_id_, numbered(4, 50)).ok());
  const auto got = take_messages(*right, 1);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_TRUE(is_numbered(got[0].bytes, 4, 50));
  EXPECT_TRUE(left->lost().empty());
}

TEST_P(TransportLimits, WhatIsForAnotherLifeIsRefused) {
  const auto left = make(left_id_), right = make(right_id_);
  right->introduce(left_id_, left->address());
  const PeerId earlier{right_id_.instance, right_id_.epoch - 1};
  left->introduce(earlier, right->address());
  EXPECT_EQ(take_lost(*left), (std::vector<PeerId>{earlier}));
  EXPECT_GE(right->stats().rejected_frames, 1u);
  EXPECT_TRUE(right->receive().empty());
}

TEST_P(TransportLimits, LongMessagesAreNeitherSentNorReceived) {
  TransportOptions options = options_of(GetParam(), right_id_);
  options.max_message_bytes = 600'000;
  const auto left = make(left_id_), right = make_with(options);
  right->introduce(left_id_, left->address());
  left->introduce(right_id_, right->address());
  EXPECT_EQ(right->send(left_id_, std::vector<std::byte>(600'001)).code(), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(left->send(right_id_, numbered(1, 600'000)).ok());
  ASSERT_EQ(take_messages(*right, 1).size(), 1u);
  ASSERT_TRUE(left->send(right_id_, numbered(2, 2'000'000)).ok());
  EXPECT_EQ(take_lost(*left), (std::vector<PeerId>{right_id_}));
  EXPECT_TRUE(right->receive().empty());
}

TEST_P(TransportLimits, ASenderOfMoreThanIsFetchedIsCutOff) {
  TransportOptions options = options_of(GetParam(), right_id_);
  options.max_message_bytes = 100'000;
  options.max_waiting_bytes = 1'000'000;
  const auto left = make(left_id_), right = make_with(options);
  right->introduce(left_id_, left->address());
  left->introduce(right_id_, right->address());
  for (uint32_t i = 0; i < 30; ++i) {
    if (!left->send(right_id_, numbered(i, 100'000)).ok()) break;
  }
  EXPECT_EQ(take_lost(*left), (std::vector<PeerId>{right_id_}));
  EXPECT_EQ(right->receive().size(), 10u);
}

// A listener that never answers: a port of something else, or a host that hangs.
class SilentListener {
 public:
  SilentListener() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(at);
    KV_CHECK(bind(fd_, reinterpret_cast<sockaddr*>(&at), length) == 0 && listen(fd_, 8) == 0 &&
                 getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &length) == 0,
             "{}", std::strerror(errno));
    address_ = join_address("127.0.0.1", ntohs(at.sin_port));
  }
  ~SilentListener() { close(fd_); }
  const std::string& address() const { return address_; }

 private:
  const int fd_;
  std::string address_;
};

TEST_P(TransportLimits, APeerThatNeverAnswersFillsItsQueueAndIsLost) {
  const SilentListener silent;
  TransportOptions options = options_of(GetParam(), left_id_);
  options.send_deadline = 500 * kNanosPerMilli;
  options.max_message_bytes = 100'000;
  options.max_waiting_bytes = 1'000'000;
  const auto left = make_with(options);
  const MonotonicClock clock;
  const Nanos began = clock.now();
  left->introduce(right_id_, silent.address());
  Status full;
  for (int i = 0; i < 100 && full.ok(); ++i) full = left->send(right_id_, std::vector<std::byte>(100'000));
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.code(), ErrorCode::kExhausted);
  EXPECT_EQ(take_lost(*left), (std::vector<PeerId>{right_id_}));
  EXPECT_LT(clock.now() - began, 5 * kNanosPerSecond);
}

TEST_P(TransportLimits, NoiseOnTheListenerHarmsNoConnection) {
  const auto left = make(left_id_), right = make(right_id_);
  const SocketAddress at = take(parse_address(right->address(), Names::kNumeric));
  for (const size_t bytes : {size_t{1}, size_t{300}, size_t{100'000}}) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(connect(fd, at.get(), at.length), 0);
    const auto noise = numbered(static_cast<uint32_t>(bytes), bytes);
    [[maybe_unused]] const ssize_t sent = ::send(fd, noise.data(), noise.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    close(fd);
  }
  right->introduce(left_id_, left->address());
  left->introduce(right_id_, right->address());
  ASSERT_TRUE(left->send(right_id_, numbered(1, 70'000)).ok());
  EXPECT_EQ(take_messages(*right, 1).size(), 1u);
}

TEST_P(TransportLimits, AnAddressThatIsTakenOrUnusableIsAnError) {
  const auto left = make(left_id_);
  TransportOptions options = options_of(GetParam(), right_id_);
  options.listen = left->address();
  EXPECT_FALSE(GetParam().make(options).ok());
  options.listen = "0.0.0.0:0";
  EXPECT_EQ(GetParam().make(options).status().code(), ErrorCode::kInvalidArgument);
  options.listen = "nonsense";
  EXPECT_EQ(GetParam().make(options).status().code(), ErrorCode::kInvalidArgument);
  options.listen = "0.0.0.0:0";
  options.advertise_host = "127.0.0.1";
  if (!options.tls) {  // without it the port must be this machine's alone
    EXPECT_EQ(GetParam().make(options).status().code(), ErrorCode::kInvalidArgument);
    return;
  }
  const auto right = make_with(options);
  EXPECT_EQ(right->address().substr(0, 10), "127.0.0.1:");
  left->introduce(right_id_, right->address());
  right->introduce(left_id_, left->address());
  ASSERT_TRUE(left->send(right_id_, numbered(1, 10)).ok());
  EXPECT_EQ(take_messages(*right, 1).size(), 1u);
}

}  // namespace
}  // namespace kvasir::test
