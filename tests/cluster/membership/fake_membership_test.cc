// The fake directory keeps the promises of Membership, by a clock that stands still.
#include "fakes/fake_membership.h"

#include <gtest/gtest.h>

#include "cluster/membership/members.h"
#include "support/take.h"

namespace kvasir::test {
namespace {

constexpr Nanos kFakeTtl = 5 * kNanosPerSecond;

struct FakeWorld {
  VirtualClock clock;
  FakeDirectory directory{clock, kFakeTtl};
  std::unique_ptr<Membership> a = directory.handle(), b = directory.handle(), c = directory.handle();

  void join_all() {
    for (const auto& [handle, name] : {std::pair{a.get(), "a"}, {b.get(), "b"}, {c.get(), "c"}}) {
      take(handle->join(some_member(name)));
    }
  }
};

TEST(FakeMembership, JoiningLeavingAndNames) {
  int called = 0;  // outlives the world, which tells of its end, too
  FakeWorld w;
  w.a->notify([&] { ++called; });
  EXPECT_EQ(take(w.a->join(some_member("a"))), 1u);
  EXPECT_EQ(w.a->poll().size(), 0u);
  EXPECT_EQ(take(w.b->join(some_member("b"))), 2u);
  EXPECT_EQ(called, 1);
  EXPECT_EQ(w.c->join(some_member("b")).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(take(w.c->join(some_member("c"))), 3u);
  EXPECT_EQ(describe(w.a->poll()), "+b/2 +c/3");
  EXPECT_EQ(describe(w.c->poll()), "+a/1 +b/2");
  EXPECT_EQ(describe(w.b->poll()), "+a/1 +c/3");
  w.b->leave();
  EXPECT_EQ(describe(w.a->poll()), "-b/2");
  auto again = w.directory.handle();
  EXPECT_EQ(take(again->join(some_member("b"))), 4u);
  EXPECT_EQ(describe(w.a->poll()), "+b/4");
  EXPECT_EQ(w.b->poll().size(), 0u);
  EXPECT_EQ(w.c->members().size(), 2u);
}

TEST(FakeMembership, TheDeadAreGoneWhenTheirLeaseEnds) {
  int called = 0;  // outlives the world
  FakeWorld w;
  w.join_all();
  w.a->campaign();
  w.b->campaign();
  EXPECT_EQ(describe(w.b->poll()), "+a/1 +c/3 leader=a/1@1");
  w.directory.kill("a");
  w.clock.advance(kFakeTtl - 1);
  EXPECT_EQ(describe(w.b->poll()), "");
  auto again = w.directory.handle();
  EXPECT_FALSE(again->join(some_member("a")).ok());
  w.b->notify([&] { ++called; });
  w.directory.tick();
  EXPECT_EQ(called, 0);
  w.clock.advance(1);
  w.directory.tick();
  EXPECT_EQ(called, 1);
  EXPECT_EQ(describe(w.b->poll()), "-a/1 leader=b/2@2");
  EXPECT_EQ(take(again->join(some_member("a"))), 4u);
  EXPECT_EQ(describe(w.b->poll()), "+a/4");
  w.b->resign();
  EXPECT_EQ(w.c->leader(), std::nullopt);
  w.c->campaign();
  EXPECT_EQ(w.b->leader(), (Leader{{"c", 3}, 3}));
}

TEST(FakeMembership, ACutOffMemberComesBackAsItWasOrWithANewEpoch) {
  FakeWorld w;
  w.join_all();
  w.a->campaign();
  w.b->campaign();
  w.a->poll();
  w.b->poll();
  w.directory.partition("a");
  w.clock.advance(kFakeTtl / 2);
  EXPECT_EQ(describe(w.a->poll()), "down");
  EXPECT_EQ(w.a->down_since(), Nanos{0});
  w.directory.heal("a");
  EXPECT_EQ(describe(w.a->poll()), "up");
  EXPECT_EQ(describe(w.b->poll()), "");

  w.directory.partition("a");
  w.clock.advance(kFakeTtl);
  EXPECT_EQ(describe(w.b->poll()), "-a/1 leader=b/2@2");
  w.c->leave();
  EXPECT_EQ(describe(w.a->poll()), "down");
  EXPECT_EQ(w.a->members().size(), 2u);
  w.directory.heal("a");
  EXPECT_EQ(describe(w.a->poll()), "leader=none lost=a/1 rejoined=a/4 -c/3 leader=b/2@2 up");
  EXPECT_EQ(w.a->self().epoch, 4u);
  EXPECT_EQ(describe(w.b->poll()), "-c/3 +a/4");
}

TEST(FakeMembership, ADirectoryThatIsDownEndsNoLease) {
  FakeWorld w;
  w.join_all();
  w.a->campaign();
  w.b->poll();
  w.directory.go_down();
  w.directory.kill("a");
  w.clock.advance(10 * kFakeTtl);
  EXPECT_EQ(describe(w.b->poll()), "down");
  EXPECT_EQ(w.b->leader(), (Leader{{"a", 1}, 1}));
  auto late = w.directory.handle();
  EXPECT_EQ(late->join(some_member("d")).status().code(), ErrorCode::kUnavailable);
  w.directory.come_up();
  w.clock.advance(kFakeTtl - 1);
  EXPECT_EQ(describe(w.b->poll()), "up");
  w.clock.advance(1);
  EXPECT_EQ(describe(w.b->poll()), "-a/1 leader=none");
}

}  // namespace
}  // namespace kvasir::test
