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

TEST(FakeNetwork, AnEndpointWithoutIdentityHearsAndSendsNothingUntilALifeBegins) {
  VirtualClock clock;
  FakeNetwork network(clock);
  auto a = network.join({"a", 1});
  auto b = network.join({"b", 0});
  EXPECT_EQ(b->address(), "fake:b");
  EXPECT_EQ(b->send({"a", 1}, bytes(1)).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(a->send({"b", 0}, bytes(1)).code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(b->receive().empty());
  network.join({"c", 1});
  network.kill("c");
  EXPECT_TRUE(b->lost().empty());
  EXPECT_EQ(a->lost(), (std::vector<PeerId>{{"c", 1}}));

  b->begin_life(0);
  EXPECT_EQ(b->send({"a", 1}, bytes(1)).code(), ErrorCode::kUnavailable);
  b->begin_life(7);
  ASSERT_TRUE(a->send({"b", 7}, bytes(2)).ok());
  EXPECT_EQ(b->receive().at(0).bytes, bytes(2));
  ASSERT_TRUE(b->send({"a", 1}, bytes(3)).ok());
  EXPECT_EQ(a->receive().at(0).from, (PeerId{"b", 7}));
  EXPECT_TRUE(a->lost().empty());
}

TEST(FakeNetwork, AnEndpointsNextLifeKnowsNothingOfTheEarlierOne) {
  VirtualClock clock;
  FakeNetwork network(clock);
  auto a = network.join({"a", 1});
  auto b = network.join({"b", 1});
  auto c = network.join({"c", 1});
  ASSERT_TRUE(a->send({"b", 1}, bytes(1)).ok());
  network.kill("c");
  b->begin_life(2);
  EXPECT_EQ(a->lost(), (std::vector<PeerId>{{"c", 1}, {"b", 1}}));
  EXPECT_TRUE(b->receive().empty());
  EXPECT_TRUE(b->lost().empty());
  EXPECT_EQ(a->send({"b", 1}, bytes(2)).code(), ErrorCode::kUnavailable);
  ASSERT_TRUE(a->send({"b", 2}, bytes(3)).ok());
  EXPECT_EQ(b->receive().at(0).bytes, bytes(3));

  // Out of the cluster: it has no identity again, and then a third.
  b->begin_life(0);
  EXPECT_EQ(a->lost(), (std::vector<PeerId>{{"b", 2}}));
  EXPECT_EQ(b->send({"a", 1}, bytes(4)).code(), ErrorCode::kUnavailable);
  b->begin_life(3);
  EXPECT_TRUE(b->send({"a", 1}, bytes(5)).ok());

  // The dead stay dead.
  network.kill("b");
  b->begin_life(4);
  EXPECT_EQ(b->send({"a", 1}, bytes(6)).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(a->send({"b", 4}, bytes(6)).code(), ErrorCode::kUnavailable);
}

TEST(FakeNetwork, WhatIsHeldArrivesWhenItIsDelivered) {
  VirtualClock clock;
  FakeNetwork network(clock);
  network.hold();
  auto a = network.join({"a", 1});
  auto b = network.join({"b", 1});
  const FakeNetwork::Held pair{{"a", 1}, {"b", 1}};
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(a->send({"b", 1}, bytes(i)).ok());
  EXPECT_TRUE(b->receive().empty());
  EXPECT_EQ(network.held(), std::vector{pair});
  EXPECT_EQ(network.held_of(pair), (std::vector{bytes(1), bytes(2), bytes(3)}));
  network.deliver(pair);
  EXPECT_EQ(b->receive().at(0).bytes, bytes(1));
  network.lose(pair);
  // What was meant for a former life reaches the one that is there.
  auto new_b = network.join({"b", 2});
  network.deliver(pair);
  EXPECT_EQ(new_b->receive().at(0).bytes, bytes(3));
  EXPECT_TRUE(network.held().empty());
}

TEST(FakeNetwork, AnEndpointThatIsCutOffHearsNothingAndIsNotTold) {
  VirtualClock clock;
  FakeNetwork network(clock);
  network.hold();
  auto a = network.join({"a", 1});
  auto b = network.join({"b", 1});
  ASSERT_TRUE(a->send({"b", 1}, bytes(1)).ok());
  network.cut("b", "a", true);
  EXPECT_TRUE(network.held().empty());
  EXPECT_TRUE(b->send({"a", 1}, bytes(2)).ok());
  EXPECT_TRUE(network.held().empty());
  EXPECT_TRUE(a->lost().empty());
  network.cut("b", "a", false);
  EXPECT_TRUE(b->send({"a", 1}, bytes(3)).ok());
  EXPECT_EQ(network.held().size(), 1u);
}

}  // namespace
}  // namespace kvasir::test
