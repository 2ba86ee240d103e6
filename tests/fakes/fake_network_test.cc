// The network in memory: messages that are late or lost, and peers that die and come back.
#include "fakes/fake_network.h"

#include <gtest/gtest.h>

#include <memory>

namespace kvasir::test {
namespace {

std::vector<std::byte> bytes(int value) {
  return {static_cast<std::byte>(value)};
}

TEST(FakeNetwork, DeliversInOrderAlsoWhenLate) {
  VirtualClock clock;
  FakeNetwork network(clock);
  auto a = network.join({"a", 1});
  auto b = network.join({"b", 1});
  network.delay("a", "b", 100);
  ASSERT_TRUE(a->send({"b", 1}, bytes(1)).ok());
  network.delay("a", "b", 0);
  ASSERT_TRUE(a->send({"b", 1}, bytes(2)).ok());
  EXPECT_TRUE(b->receive().empty());
  clock.advance(100);
  const auto got = b->receive();
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].bytes, bytes(1));
  EXPECT_EQ(got[1].bytes, bytes(2));
  EXPECT_EQ(got[0].from, (PeerId{"a", 1}));
}

TEST(FakeNetwork, DropsWhatItIsToldTo) {
  VirtualClock clock;
  FakeNetwork network(clock);
  auto a = network.join({"a", 1});
  auto b = network.join({"b", 1});
  network.drop("a", "b", 1);
  EXPECT_TRUE(a->send({"b", 1}, bytes(1)).ok());
  EXPECT_TRUE(a->send({"b", 1}, bytes(2)).ok());
  const auto got = b->receive();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].bytes, bytes(2));
}

TEST(FakeNetwork, ToldOnceOfADeathAndRefusedAfterIt) {
  VirtualClock clock;
  FakeNetwork network(clock);
  auto a = network.join({"a", 1});
  auto b = network.join({"b", 1});
  network.kill("b");
  EXPECT_EQ(a->lost(), (std::vector<PeerId>{{"b", 1}}));
  EXPECT_TRUE(a->lost().empty());
  EXPECT_EQ(a->send({"b", 1}, bytes(1)).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(b->send({"a", 1}, bytes(1)).code(), ErrorCode::kUnavailable);
}

TEST(FakeNetwork, ARestartHasANewEpochAndTheOldOneCanBeToldApart) {
  VirtualClock clock;
  FakeNetwork network(clock);
  auto a = network.join({"a", 1});
  auto old_b = network.join({"b", 1});
  auto new_b = network.join({"b", 2});
  EXPECT_EQ(a->lost(), (std::vector<PeerId>{{"b", 1}}));
  EXPECT_EQ(a->send({"b", 1}, bytes(1)).code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(a->send({"b", 2}, bytes(2)).ok());
  EXPECT_EQ(new_b->receive().size(), 1u);
  ASSERT_TRUE(old_b->send({"a", 1}, bytes(3)).ok());
  EXPECT_EQ(a->receive().at(0).from.epoch, 1u);
}

}  // namespace
}  // namespace kvasir::test
