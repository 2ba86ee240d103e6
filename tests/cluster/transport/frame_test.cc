#include "cluster/transport/frame.h"

#include <gtest/gtest.h>

#include <memory>

#include "cluster/transport/cluster_transport.h"

namespace kvasir {
namespace {

FrameHeader sample_header() {
  return {.kind = FrameKind::kMessage,
          .from = {"left", 7},
          .to_epoch = 0x1122'3344'5566'7788,
          .sequence = 41,
          .payload_bytes = 1000,
          .message_bytes = 1500};
}

TEST(Frame, ComesBackAsItWent) {
  const TokenDigest token = digest_token("secret");
  const auto bytes = encode_header(sample_header(), token);
  EXPECT_EQ(bytes.size(), kFrameFixedBytes + 4);
  const auto parsed = parse_header(bytes, token, 1500);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->kind, FrameKind::kMessage);
  EXPECT_EQ(parsed->from, (PeerId{"left", 7}));
  EXPECT_EQ(parsed->to_epoch, 0x1122'3344'5566'7788u);
  EXPECT_EQ(parsed->sequence, 41u);
  EXPECT_EQ(parsed->payload_bytes, 1000u);
  EXPECT_EQ(parsed->message_bytes, 1500u);
}

// Other builds and machines must agree on the places.
TEST(Frame, LiesAsTheHeaderSays) {
  const auto bytes = encode_header(sample_header(), digest_token("abc"));
  const auto at = [&](size_t i) { return std::to_integer<int>(bytes[i]); };
  EXPECT_EQ(at(0), 'K');
  EXPECT_EQ(at(3), 'R');
  EXPECT_EQ(at(4), kWireVersion);
  EXPECT_EQ(at(6), 2);
  EXPECT_EQ(at(7), 4);
  EXPECT_EQ(at(8), 0xba);  // SHA-256("abc") = ba7816bf…f20015ad
  EXPECT_EQ(at(39), 0xad);
  EXPECT_EQ(at(40), 7);
  EXPECT_EQ(at(48), 0x88);
  EXPECT_EQ(at(55), 0x11);
  EXPECT_EQ(at(56), 41);
  EXPECT_EQ(at(64), 1000 % 256);
  EXPECT_EQ(at(65), 1000 / 256);
  EXPECT_EQ(at(72), 1500 % 256);
  EXPECT_EQ(at(80), 'l');
}

TEST(Frame, OfAnotherClusterOrReleaseIsRefused) {
  const TokenDigest token = digest_token("secret");
  auto bytes = encode_header(sample_header(), token);
  EXPECT_EQ(parse_header(bytes, digest_token("Secret"), 1500).status().code(), ErrorCode::kInvalidArgument);
  bytes[4] = std::byte{kWireVersion + 1};
  EXPECT_EQ(parse_header(bytes, token, 1500).status().code(), ErrorCode::kUnsupported);
}

TEST(Frame, EveryDamagedByteOfItsShapeIsFound) {
  const TokenDigest token = digest_token("secret");
  const auto good = encode_header(sample_header(), token);
  for (size_t i = 0; i < 40; ++i) {
    auto bad = good;
    bad[i] ^= std::byte{0x40};
    EXPECT_FALSE(parse_header(bad, token, 1500).ok()) << i;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(parse_header(std::span(good).first(size), token, 1500).ok()) << size;
  }
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parse_header(longer, token, 1500).ok());
}

TEST(Frame, AnnouncesNoMoreThanTheBound) {
  const TokenDigest token = digest_token("secret");
  EXPECT_FALSE(parse_header(encode_header(sample_header(), token), token, 1499).ok());
  FrameHeader part = sample_header();
  part.payload_bytes = 1501;  // longer than the whole
  EXPECT_FALSE(parse_header(encode_header(part, token), token, 2000).ok());
  FrameHeader greeting = sample_header();
  greeting.kind = FrameKind::kHello;
  EXPECT_FALSE(parse_header(encode_header(greeting, token), token, 1500).ok());
  greeting.payload_bytes = 0;
  EXPECT_FALSE(parse_header(encode_header(greeting, token), token, 1500).ok());
  greeting.message_bytes = 0;
  EXPECT_TRUE(parse_header(encode_header(greeting, token), token, 1500).ok());
}

// The part that every transport shares, without any.
class Probe final : public ClusterTransport {
 public:
  explicit Probe(TransportOptions options) : ClusterTransport(std::move(options)) {}
  std::string wire() const override { return "probe"; }
  using ClusterTransport::admit;
  using ClusterTransport::deliver;
  using ClusterTransport::header;
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
  options.token = "secret";
  return options;
}

TEST(Admission, CountsWhatItRefuses) {
  Probe probe(probe_options());
  const TokenDigest token = digest_token("secret");
  FrameHeader header = sample_header();
  header.to_epoch = 9;
  auto bytes = encode_header(header, token);
  EXPECT_TRUE(probe.admit(bytes, 1000).ok());
  EXPECT_EQ(probe.stats().rejected_frames, 0u);

  EXPECT_FALSE(probe.admit(bytes, 999).ok());  // brings less than it says
  bytes[4] = std::byte{kWireVersion + 1};
  EXPECT_FALSE(probe.admit(bytes, 1000).ok());
  EXPECT_FALSE(probe.admit(encode_header(header, digest_token("other")), 1000).ok());
  header.to_epoch = 8;  // an earlier life of ours
  EXPECT_FALSE(probe.admit(encode_header(header, token), 1000).ok());
  EXPECT_EQ(probe.stats().rejected_frames, 4u);
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
  FrameHeader header = sample_header();
  header.to_epoch = 9;
  const auto bytes = encode_header(header, digest_token("secret"));
  ASSERT_TRUE(probe.admit(bytes, 1000).ok());
  probe.begin_life(10);
  EXPECT_EQ(probe.closed, std::vector{first});
  EXPECT_FALSE(probe.admit(bytes, 1000).ok());
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
  // Its frames are marked as the earlier life's, whenever they leave.
  const auto marked =
      parse_header(probe.header(FrameKind::kHello, 9, {"left", 7}, 0), digest_token("secret"), 1);
  ASSERT_TRUE(marked.ok());
  EXPECT_EQ(marked->from, (PeerId{"right", 9}));
}

TEST(Admission, NoPeerIsHeardOrIntroducedWithoutALife) {
  Probe probe(probe_options());
  probe.introduce({"left", 7}, "somewhere");
  probe.begin_life(0);
  const uint64_t first = probe.last_link;
  probe.introduce({"left", 7}, "somewhere");
  EXPECT_EQ(probe.last_link, first);
  EXPECT_EQ(probe.send({"left", 7}, {}).code(), ErrorCode::kUnavailable);
  FrameHeader header = sample_header();
  header.to_epoch = 0;
  EXPECT_FALSE(probe.admit(encode_header(header, digest_token("secret")), 1000).ok());
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
  options.token.clear();
  EXPECT_NE(check_options(options).message().find("token"), std::string::npos);
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
