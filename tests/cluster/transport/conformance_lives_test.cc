// What every transport does when its own instance begins another life.
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#include "cluster/transport/peer_process.h"
#include "cluster/transport/transport_fixture.h"

namespace kvasir::test {
namespace {

std::string living_kind_name(const testing::TestParamInfo<TransportKind>& info) {
  return info.param.name;
}

class TransportLives : public TransportPairTest {
 protected:
  // Both ways, each a small message and one in many parts.
  void expect_heard(ClusterTransport& a, const PeerId& id_a, ClusterTransport& b, const PeerId& id_b) {
    for (const auto& [from, id_from, to, id_to] :
         {std::tuple{&a, id_a, &b, id_b}, std::tuple{&b, id_b, &a, id_a}}) {
      ASSERT_TRUE(from->send(id_to, numbered(1, 100)).ok());
      ASSERT_TRUE(from->send(id_to, numbered(2, 1'000'000)).ok());
      const auto got = take_messages(*to, 2);
      ASSERT_EQ(got.size(), 2u);
      EXPECT_EQ(got[0].from, id_from);
      EXPECT_TRUE(is_numbered(got[0].bytes, 1, 100));
      EXPECT_TRUE(is_numbered(got[1].bytes, 2, 1'000'000));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(All, TransportLives, testing::ValuesIn(transport_kinds()), living_kind_name);

TEST_P(TransportLives, OneWithoutALifeHearsAndSendsNothing) {
  const auto lifeless = make({"late", 0});
  EXPECT_FALSE(lifeless->address().empty());
  lifeless->introduce(right_id_, right_->address());
  EXPECT_EQ(lifeless->send(right_id_, numbered(1, 10)).code(), ErrorCode::kUnavailable);
  // A peer that names it without a life, or with the life that is to come, is not heard either.
  for (const uint64_t epoch : {uint64_t{0}, uint64_t{33}}) {
    const PeerId meant{"late", epoch};
    right_->introduce(meant, lifeless->address());
    [[maybe_unused]] const Status sent = right_->send(meant, numbered(2, 100));  // it may be lost already
    EXPECT_EQ(take_lost(*right_), (std::vector<PeerId>{meant}));
  }
  EXPECT_GE(lifeless->stats().rejected_frames, 2u);
  EXPECT_TRUE(lifeless->receive().empty());
  EXPECT_TRUE(lifeless->lost().empty());

  // Its life begins.
  const PeerId id{"late", 33};
  lifeless->begin_life(33);
  EXPECT_EQ(lifeless->send(right_id_, numbered(1, 10)).code(), ErrorCode::kUnavailable);
  lifeless->introduce(right_id_, right_->address());
  right_->introduce(id, lifeless->address());
  ASSERT_NO_FATAL_FAILURE(expect_heard(*lifeless, id, *right_, right_id_));

  // And ends, for now.
  lifeless->begin_life(0);
  EXPECT_EQ(lifeless->send(right_id_, numbered(1, 10)).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(take_lost(*right_), (std::vector<PeerId>{id}));
  EXPECT_TRUE(lifeless->receive().empty());
}

TEST_P(TransportLives, TheNextLifeKnowsNothingOfTheEarlierOne) {
  ASSERT_NO_FATAL_FAILURE(expect_heard(*left_, left_id_, *right_, right_id_));
  // What waits for the earlier life: messages, and word of a loss.
  ASSERT_TRUE(right_->send(left_id_, numbered(3, 1000)).ok());
  left_->introduce({"nonsense", 1}, "not an address");
  ASSERT_TRUE(
      eventually([&] { return left_->stats().messages_received == 3 && left_->stats().lost_peers == 1; }));
  const std::string address = left_->address();
  left_->begin_life(12);
  EXPECT_EQ(left_->address(), address);
  EXPECT_TRUE(left_->receive().empty());
  EXPECT_TRUE(left_->lost().empty());
  EXPECT_EQ(left_->send(right_id_, numbered(4, 10)).code(), ErrorCode::kUnavailable);
  // The others find the earlier life lost, though they send nothing.
  EXPECT_EQ(take_lost(*right_), (std::vector<PeerId>{left_id_}));

  const PeerId next{left_id_.instance, 12};
  right_->introduce(next, address);
  // As long as it has not introduced them itself they are strangers, as they are to every other end.
  ASSERT_TRUE(right_->send(next, numbered(5, 10)).ok());
  ASSERT_TRUE(eventually([&] { return left_->stats().unknown_frames == 1; }));
  EXPECT_TRUE(left_->receive().empty());
  left_->introduce(right_id_, right_->address());
  ASSERT_NO_FATAL_FAILURE(expect_heard(*left_, next, *right_, right_id_));
  EXPECT_TRUE(left_->lost().empty());
  EXPECT_TRUE(right_->lost().empty());
}

// Every life ends while its peer, which has one name and epoch throughout, still answers it. The peers are
// processes.
TEST_P(TransportLives, WhatIsUnderWayIsOfTheLifeThatItWasSentTo) {
  const auto near = make({"near", 0});
  const PeerId far{"far", 7};
  std::vector<std::unique_ptr<PeerProcess>> peers;
  for (uint32_t epoch = 100; epoch < 106; ++epoch) {
    near->begin_life(epoch);
    peers.push_back(std::make_unique<PeerProcess>(GetParam(), far, PeerId{"near", epoch}, near->address()));
    near->introduce(far, peers.back()->address());
    for (uint32_t i = 0; i < 40; ++i) {
      ASSERT_TRUE(near->send(far, numbered(epoch, i % 4 ? 64 : 200'000)).ok());
    }
    const auto echoes = take_messages(*near, 3);
    ASSERT_GE(echoes.size(), 3u) << epoch;
    for (const PeerMessage& echo : echoes) {
      ASSERT_EQ(echo.from, far);
      uint32_t tag = 0;
      ASSERT_GE(echo.bytes.size(), sizeof(tag));
      std::memcpy(&tag, echo.bytes.data(), sizeof(tag));
      ASSERT_EQ(tag, epoch);
    }
    EXPECT_TRUE(near->lost().empty());
  }
}

}  // namespace
}  // namespace kvasir::test
