// Envelopes that are stale, repeated, malformed, or made up.
#include "cluster/protocol/post.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "cluster/protocol/cluster.pb.h"
#include "cluster/protocol/instances.h"

namespace kvasir::cluster::test {
namespace {

std::vector<std::byte> bytes_of(const wire::Envelope& message) {
  std::vector<std::byte> bytes(message.ByteSizeLong());
  message.SerializeToArray(bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

wire::Envelope envelope(uint64_t sender, uint64_t receiver, uint64_t sequence) {
  wire::Envelope message;
  message.set_sender_epoch(sender);
  message.set_receiver_epoch(receiver);
  message.set_sequence(sequence);
  message.mutable_ask_statement();
  return message;
}

struct OnePost {
  VirtualClock clock;
  FakeNetwork network{clock};
  std::unique_ptr<PeerTransport> me = network.join({"me", 7});
  std::unique_ptr<PeerTransport> peer = network.join({"peer", 3});
  Post post{*me, {"me", 7}};
  OnePost() { post.joined({"peer", 3}); }
  bool opens(const wire::Envelope& message, uint64_t from_epoch = 3) {
    return std::holds_alternative<Post::Opened>(post.open({{"peer", from_epoch}, bytes_of(message)}));
  }
};

TEST(Post, OpensWhatIsForThisLifeFromACurrentOneInOrder) {
  OnePost one;
  EXPECT_TRUE(one.opens(envelope(3, 7, 1)));
  EXPECT_TRUE(one.opens(envelope(3, 7, 5)));
  EXPECT_FALSE(one.opens(envelope(3, 7, 5)));
  EXPECT_FALSE(one.opens(envelope(3, 7, 4)));
  EXPECT_EQ(one.post.counts().repeated, 2u);
  EXPECT_FALSE(one.opens(envelope(2, 7, 6))) << "it says another epoch than the transport";
  EXPECT_FALSE(one.opens(envelope(2, 7, 6), 2)) << "a former life";
  one.post.lost({"peer", 3});
  EXPECT_FALSE(one.opens(envelope(3, 7, 7)));
  EXPECT_EQ(one.post.counts().stale, 3u);
  EXPECT_EQ(one.post.counts().malformed, 0u);
}

TEST(Post, ASenderToAFormerLifeIsToldThatItIsOver) {
  OnePost one;
  EXPECT_FALSE(one.opens(envelope(3, 6, 1)));
  Post other(*one.peer, {"peer", 3});
  other.joined({"me", 6});
  const auto answers = one.peer->receive();
  ASSERT_EQ(answers.size(), 1u);
  const auto outcome = other.open(answers[0]);
  ASSERT_TRUE(std::holds_alternative<Post::LifeOver>(outcome));
  EXPECT_EQ(std::get<Post::LifeOver>(outcome).peer, (PeerId{"me", 6}));
}

TEST(Post, WhatIsNoMessageIsCountedOnce) {
  OnePost one;
  EXPECT_FALSE(one.opens(wire::Envelope{}));
  const auto outcome = one.post.open({{"peer", 3}, std::vector<std::byte>(5, std::byte{0xFF})});
  EXPECT_TRUE(std::holds_alternative<Post::Dropped>(outcome));
  EXPECT_EQ(one.post.counts().malformed, 2u);
}

TEST(Post, SendsOnlyToKnownPeers) {
  OnePost one;
  wire::Envelope message = envelope(0, 0, 0);
  EXPECT_EQ(one.post.send({"peer", 4}, message).code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(one.post.send({"peer", 3}, message).ok());
  EXPECT_EQ(one.peer->receive().size(), 1u);
}

// What says what cannot be is one counted error, and changes nothing.
TEST(ControlPlane, ImpossibleMessagesAreCountedAndIgnored) {
  Instances all({8, 8});
  const ContractRef loan = all.borrow(0, 2);
  std::vector<wire::Envelope> messages(6);
  messages[0].mutable_give_back()->set_contract(loan.id);
  messages[0].mutable_give_back()->add_slots(2);
  messages[1].mutable_ask();
  wire::Statement::Line* line = messages[2].mutable_statement()->add_lines();
  line->set_contract(loan.id);
  line->set_granted(2);
  line->set_lent(3);
  messages[3].mutable_advice()->set_term(1);
  messages[4].mutable_heartbeat()->set_term(1);
  messages[4].mutable_heartbeat()->set_room(1);
  messages[5].mutable_borrow()->set_term(1);
  messages[5].mutable_borrow()->set_least(1);
  uint64_t malformed = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool to_creditor = i < 2;
    ASSERT_TRUE(all.at(to_creditor ? 0 : 1).post().send(all.id(to_creditor ? 1 : 0), messages[i]).ok());
    // Advice is the leader's: b is none, so what it says is not even looked at.
    malformed += i == 3 ? 0 : 1;
    all.deliver();
    EXPECT_EQ(all.at(0).post().counts().malformed + all.at(1).post().counts().malformed, malformed) << i;
  }
  EXPECT_EQ(all.lender(1).lent_blocks(), 2u);
  EXPECT_EQ(all.borrower(0).held(loan)->held.size(), 2u);
}

TEST(ControlPlane, NothingThatArrivesBringsItDown) {
  Instances all({8, 8});
  all.borrow(0, 2);
  std::vector<std::vector<std::byte>> seen;
  all.network().spy([&](const FakeNetwork::Held& pair, const std::vector<std::byte>& bytes) {
    if (pair.to.instance == "a") seen.push_back(bytes);
  });
  all.want(0, 2);
  all.want(1, 2);
  all.run(2 * kNanosPerSecond);
  all.network().spy(nullptr);
  ASSERT_GT(seen.size(), 5u);
  // Each malformed one is a line of the log.
  testing::internal::CaptureStderr();
  Random random(3);
  uint64_t sequence = 1u << 20;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes = seen[random.below(seen.size())];
    for (uint64_t flips = random.below(4); flips > 0; --flips) {
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random.below(256));
    }
    if (random.below(4) == 0) bytes.resize(random.below(bytes.size() + 1));
    wire::Envelope message;
    // Half of them as a sender that knows the epochs would make them.
    if (random.below(2) == 0 && message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      message.set_sender_epoch(1);
      message.set_receiver_epoch(1);
      message.set_sequence(++sequence);
      bytes = bytes_of(message);
    }
    all.at(0).handle({all.id(1), std::move(bytes)}, all.now());
  }
  testing::internal::GetCapturedStderr();
  const PostCounts& counts = all.at(0).post().counts();
  EXPECT_GT(counts.malformed, 100u);
  EXPECT_GT(counts.stale + counts.repeated, 100u);
}

TEST(Post, AnAgeIsOfTwoTimesOfOneClockWhateverTheyAre) {
  EXPECT_EQ(age_of(40, 100), 60);
  EXPECT_EQ(age_of(100, 40), 0) << "it does not lie ahead";
  for (const int64_t since : {INT64_MIN, int64_t{0}, INT64_MAX}) {
    for (const int64_t now : {INT64_MIN, int64_t{0}, INT64_MAX}) {
      EXPECT_GE(age_of(since, now), 0);
      EXPECT_LE(age_of(since, now), INT64_MAX / 4);
    }
  }
}

TEST(ProtocolSettings, SayWhatMakesNoSense) {
  EXPECT_TRUE(check(ProtocolSettings{}).ok());
  ProtocolSettings settings;
  settings.recall = 0;
  EXPECT_NE(check(settings).message().find("recall"), std::string::npos);
  settings = {};
  settings.silence = settings.statement;
  EXPECT_FALSE(check(settings).ok());
  settings = {};
  settings.settle_min = 0;
  EXPECT_FALSE(check(settings).ok());
}

}  // namespace
}  // namespace kvasir::cluster::test
