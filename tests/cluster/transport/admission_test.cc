// What every transport shares: who is heard, and what is told of a peer.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "cluster/transport/cluster_transport.h"

namespace kvasir {
namespace {

// Without any transport.
class Probe final : public ClusterTransport {
 public:
  explicit Probe(TransportOptions options) : ClusterTransport(std::move(options)) {}
  std::string wire() const override { return "probe"; }
  using ClusterTransport::admit;
  using ClusterTransport::deliver;
  using ClusterTransport::link_lost;
  using ClusterTransport::settled;
  LinkId last_link = 0;
  uint64_t last_life = 0;
  std::vector<LinkId> closed;

 protected:
  void open_link(LinkId link, uint64_t life, const PeerId&, const std::string&) override {
    last_link = link;
    last_life = life;
  }
  void close_link(LinkId link) override { closed.push_back(link); }
  void post(LinkId, std::vector<std::byte>) override {}
};

TransportOptions probe_options() {
  TransportOptions options;
  options.self = {"right", 9};
  return options;
}

TEST(Admission, CountsWhatItRefuses) {
  Probe probe(probe_options());
  EXPECT_TRUE(probe.admit({"left", 7}, 9, nullptr).ok());
  EXPECT_EQ(probe.stats().rejected_frames, 0u);
  EXPECT_EQ(probe.admit({"left", 7}, 8, nullptr).code(), ErrorCode::kUnavailable);  // an earlier life of ours
  EXPECT_EQ(probe.stats().rejected_frames, 1u);
}

TEST(Admission, ASenderIsWhoItsCertificateSays) {
  Probe probe(probe_options());
  const std::vector<std::string> certified{"10.0.0.1", "left"};
  EXPECT_TRUE(probe.admit({"left", 7}, 9, &certified).ok());
  for (const char* other : {"right", "lef", "left.", "LEFT", "*", ""}) {
    const Status refused = probe.admit({other, 7}, 9, &certified);
    EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument) << other;
    EXPECT_NE(refused.message().find("'10.0.0.1', 'left'"), std::string::npos) << refused.message();
  }
  const std::vector<std::string> none, any{"*"};
  EXPECT_FALSE(probe.admit({"left", 7}, 9, &none).ok());
  EXPECT_FALSE(probe.admit({"left", 7}, 9, &any).ok());
  EXPECT_EQ(probe.stats().rejected_frames, 8u);
}

TEST(Admission, EachNameThatIsNotOnesOwnIsSaidOnceAndNotTooMany) {
  Probe probe(probe_options());
  const std::vector<std::string> certified{"third"};
  testing::internal::CaptureStderr();
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 70; ++i) {
      EXPECT_FALSE(probe.admit({fmt::format("left{}", i), 7}, 9, &certified).ok());
    }
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 64);
  EXPECT_NE(log.find("is not that of 'left63'"), std::string::npos);
  EXPECT_EQ(probe.stats().rejected_frames, 140u);
}

TEST(Admission, ALateMessageOfAnEarlierLifeIsDropped) {
  Probe probe(probe_options());
  probe.introduce({"left", 7}, "somewhere");
  EXPECT_TRUE(probe.deliver({"left", 7}, 9, std::vector<std::byte>(3)).ok());
  probe.introduce({"left", 8}, "somewhere");
  EXPECT_TRUE(probe.deliver({"left", 7}, 9, std::vector<std::byte>(4)).ok());
  EXPECT_TRUE(probe.receive().empty());  // what had arrived of the earlier life is gone, too
  EXPECT_TRUE(probe.deliver({"left", 8}, 9, std::vector<std::byte>(5)).ok());
  const auto got = probe.receive();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].bytes.size(), 5u);
  EXPECT_EQ(probe.stats().unknown_frames, 1u);
}

// Every step of a frame's way, with a life that ends between any two of them.
TEST(Admission, WhatWasAdmittedForAnEndedLifeIsNotDelivered) {
  Probe probe(probe_options());
  probe.introduce({"left", 7}, "somewhere");
  EXPECT_EQ(probe.last_life, 9u);
  const uint64_t first = probe.last_link;
  ASSERT_TRUE(probe.send({"left", 7}, std::vector<std::byte>(6)).ok());
  ASSERT_TRUE(probe.admit({"left", 7}, 9, nullptr).ok());
  probe.begin_life(10);
  EXPECT_EQ(probe.closed, std::vector{first});
  EXPECT_FALSE(probe.admit({"left", 7}, 9, nullptr).ok());
  probe.introduce({"left", 7}, "somewhere");  // the same life of the peer
  EXPECT_EQ(probe.last_life, 10u);
  const Status late = probe.deliver({"left", 7}, 9, std::vector<std::byte>(3));
  EXPECT_EQ(late.code(), ErrorCode::kUnavailable) << late.message();
  EXPECT_TRUE(probe.receive().empty());
  EXPECT_EQ(probe.stats().rejected_frames, 2u);
  EXPECT_TRUE(probe.deliver({"left", 7}, 10, std::vector<std::byte>(4)).ok());
  EXPECT_EQ(probe.receive().size(), 1u);
  // What the earlier life's link still tells does not count.
  probe.settled(first, 6);
  probe.link_lost(first, "test");
  EXPECT_TRUE(probe.lost().empty());
  EXPECT_TRUE(probe.send({"left", 7}, {}).ok());
}

TEST(Admission, NoPeerIsHeardOrIntroducedWithoutALife) {
  Probe probe(probe_options());
  probe.introduce({"left", 7}, "somewhere");
  probe.begin_life(0);
  const uint64_t first = probe.last_link;
  probe.introduce({"left", 7}, "somewhere");
  EXPECT_EQ(probe.last_link, first);
  EXPECT_EQ(probe.send({"left", 7}, {}).code(), ErrorCode::kUnavailable);
  EXPECT_FALSE(probe.admit({"left", 7}, 0, nullptr).ok());
  EXPECT_FALSE(probe.deliver({"left", 7}, 0, {}).ok());
}

TEST(Admission, ALossIsToldOnceAndNotOfTheForgotten) {
  Probe probe(probe_options());
  probe.introduce({"left", 7}, "somewhere");
  const uint64_t first = probe.last_link;
  probe.link_lost(first, "test");
  probe.link_lost(first, "test");
  EXPECT_EQ(probe.lost(), (std::vector<PeerId>{{"left", 7}}));
  EXPECT_TRUE(probe.lost().empty());
  EXPECT_EQ(probe.send({"left", 7}, {}).code(), ErrorCode::kUnavailable);

  probe.introduce({"left", 7}, "somewhere");  // again
  EXPECT_TRUE(probe.send({"left", 7}, {}).ok());
  probe.link_lost(first, "test");  // of the link before
  EXPECT_TRUE(probe.send({"left", 7}, {}).ok());
  const uint64_t second = probe.last_link;
  probe.forget({"left", 7});
  probe.link_lost(second, "test");
  EXPECT_TRUE(probe.lost().empty());
}

TEST(Options, ThatCannotWorkAreNamed) {
  EXPECT_TRUE(check_options(probe_options()).ok());
  TransportOptions options = probe_options();
  options.self.instance.clear();
  EXPECT_FALSE(check_options(options).ok());
  options = probe_options();
  options.self.instance.assign(256, 'x');
  EXPECT_FALSE(check_options(options).ok());
  options = probe_options();
  options.send_deadline = 0;
  EXPECT_FALSE(check_options(options).ok());
  options = probe_options();
  options.max_waiting_bytes = options.max_message_bytes - 1;
  EXPECT_FALSE(check_options(options).ok());
  options = probe_options();
  options.max_message_bytes = options.max_waiting_bytes = size_t{4} << 30;
  EXPECT_FALSE(check_options(options).ok());
}

}  // namespace
}  // namespace kvasir
