// What every transport does when a peer dies, hangs, comes back or was never there.
#include <csignal>
#include <optional>

#include "cluster/transport/peer_process.h"
#include "cluster/transport/transport_fixture.h"

namespace kvasir::test {
namespace {

std::string failing_kind_name(const testing::TestParamInfo<TransportKind>& info) {
  return info.param.name;
}

class TransportFailures : public TransportTest {
 protected:
  void start(Nanos deadline = 5 * kNanosPerSecond) {
    TransportOptions options = options_of(GetParam(), id_);
    options.send_deadline = deadline;
    transport_ = make_with(options);
  }
  // A peer that has answered once.
  void meet(uint64_t epoch, const std::string& listen = "127.0.0.1:0") {
    peer_.emplace(GetParam(), PeerId{"far", epoch}, id_, transport_->address(), listen);
    transport_->introduce(peer_->id(), peer_->address());
    ASSERT_TRUE(transport_->send(peer_->id(), numbered(1, 5000)).ok());
    const auto echo = take_messages(*transport_, 1);
    ASSERT_EQ(echo.size(), 1u);
    ASSERT_EQ(echo[0].from, peer_->id());
    ASSERT_TRUE(is_numbered(echo[0].bytes, 1, 5000));
  }

  const PeerId id_{"near", 5};
  const MonotonicClock clock_{};
  std::unique_ptr<ClusterTransport> transport_;
  std::optional<PeerProcess> peer_;
};
INSTANTIATE_TEST_SUITE_P(All, TransportFailures, testing::ValuesIn(transport_kinds()), failing_kind_name);

// By the end of its connection: a deadline would take longer than take_lost() waits.
TEST_P(TransportFailures, AKilledPeerIsLostLongBeforeItsDeadline) {
  start(3 * kPatience);
  ASSERT_NO_FATAL_FAILURE(meet(1));
  const Nanos killed = clock_.now();
  peer_->kill_now();
  EXPECT_EQ(take_lost(*transport_), (std::vector<PeerId>{peer_->id()}));
  const Nanos took = clock_.now() - killed;
  RecordProperty("lost_after_us", static_cast<int>(took / kNanosPerMicro));
  EXPECT_EQ(transport_->send(peer_->id(), {}).code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(take_lost(*transport_, 50 * kNanosPerMilli).empty());  // told once
}

TEST_P(TransportFailures, AKilledPeerIsLostWithMuchUnderWay) {
  start(3 * kPatience);
  ASSERT_NO_FATAL_FAILURE(meet(1));
  for (uint32_t i = 0; i < 60; ++i) {
    ASSERT_TRUE(transport_->send(peer_->id(), numbered(i, i % 3 == 0 ? 1 << 20 : 3000)).ok());
  }
  peer_->kill_now();
  EXPECT_EQ(take_lost(*transport_), (std::vector<PeerId>{peer_->id()}));
}

// Nothing fails at a stopped peer but time: the library never says a word.
TEST_P(TransportFailures, AStoppedPeerIsLostByOurDeadline) {
  for (const size_t bytes : {size_t{100}, size_t{4} << 20}) {
    constexpr Nanos kDeadline = 500 * kNanosPerMilli;
    start(kDeadline);
    ASSERT_NO_FATAL_FAILURE(meet(1));
    peer_->signal(SIGSTOP);
    const Nanos stopped = clock_.now();
    ASSERT_TRUE(transport_->send(peer_->id(), numbered(2, bytes)).ok());
    EXPECT_EQ(take_lost(*transport_), (std::vector<PeerId>{peer_->id()})) << bytes;
    const Nanos took = clock_.now() - stopped;
    EXPECT_GT(took, kDeadline / 2);  // it runs from what was sent before, if no word of that has come
    EXPECT_LT(took, 8 * kDeadline);
    // What it says late does not count.
    peer_->signal(SIGCONT);
    EXPECT_TRUE(transport_->receive().empty());
    peer_.reset();
    transport_.reset();
  }
}

// What waits to be written to it has filled the socket, and no cancellation ends it.
TEST_P(TransportFailures, AnEndGoesAlthoughAPeerHangs) {
  constexpr Nanos kDeadline = kNanosPerSecond;
  start(kDeadline);
  ASSERT_NO_FATAL_FAILURE(meet(1));
  peer_->signal(SIGSTOP);
  for (uint32_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(transport_->send(peer_->id(), numbered(i, size_t{4} << 20)).ok());
  }
  const Nanos began = clock_.now();
  transport_.reset();
  EXPECT_LT(clock_.now() - began, 5 * kDeadline);
  peer_->signal(SIGCONT);
}

TEST_P(TransportFailures, AnIdleStoppedPeerThatContinuesWasNeverLost) {
  start();
  ASSERT_NO_FATAL_FAILURE(meet(1));
  peer_->signal(SIGSTOP);
  EXPECT_TRUE(take_lost(*transport_, 100 * kNanosPerMilli).empty());
  ASSERT_TRUE(transport_->send(peer_->id(), numbered(2, 1 << 20)).ok());
  peer_->signal(SIGCONT);
  const auto echo = take_messages(*transport_, 1);
  ASSERT_EQ(echo.size(), 1u);
  EXPECT_TRUE(is_numbered(echo[0].bytes, 2, 1 << 20));
}

TEST_P(TransportFailures, ARestartedPeerIsReachedUnderItsNewEpochAtTheSameAddress) {
  start();
  ASSERT_NO_FATAL_FAILURE(meet(1));
  const PeerId old = peer_->id();
  const std::string address = peer_->address();
  peer_->kill_now();
  ASSERT_EQ(take_lost(*transport_), (std::vector<PeerId>{old}));
  ASSERT_NO_FATAL_FAILURE(meet(2, address));
  EXPECT_EQ(peer_->address(), address);
  EXPECT_EQ(transport_->send(old, {}).code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(take_lost(*transport_, 0).empty());
}

// The new life is introduced before the old one's death has shown.
TEST_P(TransportFailures, AnIntroductionForgetsTheEarlierLife) {
  start();
  ASSERT_NO_FATAL_FAILURE(meet(1));
  PeerProcess next(GetParam(), {"far", 2}, id_, transport_->address());
  transport_->introduce(next.id(), next.address());
  EXPECT_EQ(transport_->send(peer_->id(), {}).code(), ErrorCode::kUnavailable);
  peer_->kill_now();
  ASSERT_TRUE(transport_->send(next.id(), numbered(3, 400)).ok());
  const auto echo = take_messages(*transport_, 1);
  ASSERT_EQ(echo.size(), 1u);
  EXPECT_EQ(echo[0].from, next.id());
  EXPECT_TRUE(take_lost(*transport_, 100 * kNanosPerMilli).empty());
}

TEST_P(TransportFailures, OfAForgottenPeerNothingIsTold) {
  start();
  ASSERT_NO_FATAL_FAILURE(meet(1));
  ASSERT_TRUE(transport_->send(peer_->id(), numbered(2, 1 << 20)).ok());
  transport_->forget(peer_->id());
  EXPECT_EQ(transport_->send(peer_->id(), {}).code(), ErrorCode::kUnavailable);
  peer_->kill_now();
  EXPECT_TRUE(take_lost(*transport_, 200 * kNanosPerMilli).empty());
  EXPECT_TRUE(transport_->receive().empty());
}

TEST_P(TransportFailures, AnAbsentPeerIsLost) {
  start();
  std::string address;
  { address = make({"brief", 1})->address(); }
  transport_->introduce({"absent", 1}, address);
  EXPECT_EQ(take_lost(*transport_), (std::vector<PeerId>{{"absent", 1}}));
  transport_->introduce({"nonsense", 1}, "not an address");
  EXPECT_EQ(take_lost(*transport_), (std::vector<PeerId>{{"nonsense", 1}}));
  // And is tried again when it is introduced again.
  const auto late = make({"absent", 1});
  late->introduce(id_, transport_->address());
  transport_->introduce({"absent", 1}, late->address());
  ASSERT_TRUE(transport_->send({"absent", 1}, numbered(1, 10)).ok());
  EXPECT_EQ(take_messages(*late, 1).size(), 1u);
}

TEST_P(TransportFailures, AnEndThatGoesIsLostByTheOthers) {
  start();
  auto other = make({"other", 2});
  transport_->introduce({"other", 2}, other->address());
  other->introduce(id_, transport_->address());
  ASSERT_TRUE(transport_->send({"other", 2}, numbered(1, 10)).ok());
  ASSERT_EQ(take_messages(*other, 1).size(), 1u);
  other.reset();
  EXPECT_EQ(take_lost(*transport_), (std::vector<PeerId>{{"other", 2}}));
}

TEST_P(TransportFailures, EndsWithMuchUnderWay) {
  for (int round = 0; round < 5; ++round) {
    start();
    auto other = make({"other", 2});
    transport_->introduce({"other", 2}, other->address());
    other->introduce(id_, transport_->address());
    for (uint32_t i = 0; i < 20; ++i) {
      ASSERT_TRUE(transport_->send({"other", 2}, numbered(i, i % 2 ? 2 << 20 : 100)).ok());
      ASSERT_TRUE(other->send(id_, numbered(i, i % 2 ? 100 : 1 << 20)).ok());
    }
    if (round % 2 == 1) {
      EXPECT_FALSE(take_messages(*other, 2).empty());
    }
    const Nanos began = clock_.now();
    (round < 3 ? transport_ : other).reset();
    EXPECT_LT(clock_.now() - began, 10 * kNanosPerSecond);
    (round < 3 ? other : transport_).reset();
  }
}

}  // namespace
}  // namespace kvasir::test
