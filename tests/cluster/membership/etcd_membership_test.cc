// Members, their deaths and their leader by a real etcd, which dies, hangs and comes back.
#include "cluster/membership/etcd_membership.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <thread>

#include "cluster/membership/faulty_server.h"
#include "cluster/membership/members.h"
#include "cluster/membership/watcher.h"
#include "support/etcd_process.h"
#include "support/take.h"

namespace kvasir::test {
namespace {

TEST(EtcdMembership, JoiningLeavingAndOneNameForOneInstance) {
  if (!EtcdProcess::installed()) GTEST_SKIP() << "no etcd here: apt-get install etcd-server";
  EtcdProcess etcd;
  Watcher a(etcd.port()), b(etcd.port()), c(etcd.port());
  const uint64_t epoch_a = take(a->join(some_member("a")));
  EXPECT_EQ(id_of(a), (PeerId{"a", epoch_a}));
  EXPECT_TRUE(a->members().empty());
  Member member_b = some_member("b");
  member_b.lends_cells = 0;
  member_b.id.epoch = take(b->join(member_b));
  // A new member knows the others at once, and they are told of it.
  ASSERT_EQ(b->members().size(), 1u);
  EXPECT_EQ(b->members()[0].id, id_of(a));
  ASSERT_TRUE(a.saw_joined("b"));
  ASSERT_EQ(a->members().size(), 1u);
  EXPECT_EQ(a->members()[0], member_b);
  take(c->join(some_member("c")));
  ASSERT_TRUE(a.saw_joined("c"));
  ASSERT_TRUE(b.saw_joined("c"));
  EXPECT_EQ(c.all(), "+a/" + std::to_string(epoch_a) + " +" + text_of(member_b.id));

  // A second one of the name is refused while the first lives, and the first does not notice.
  Watcher second(etcd.port());
  const Status clash = second->join(some_member("b")).status();
  ASSERT_FALSE(clash.ok());
  EXPECT_EQ(clash.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(clash.message().find("'b' is taken by a live instance of the cluster 'test' (at 127.0.0.1:1001)"),
            std::string::npos)
      << clash.message();
  EXPECT_EQ(second->self().epoch, 0u);
  // Then another name is taken.
  ASSERT_TRUE(second->join(some_member("d")).ok());
  ASSERT_TRUE(a.saw_joined("d"));

  // The others see at once that a member leaves, and its name is free at once.
  const Nanos begin = now();
  const PeerId gone = id_of(b);
  b->leave();
  ASSERT_TRUE(a.saw("-" + text_of(gone)));
  ASSERT_TRUE(c.saw("-" + text_of(gone)));
  Watcher again(etcd.port());
  const uint64_t epoch = take(again->join(some_member("b")));
  EXPECT_NE(epoch, gone.epoch);
  ASSERT_TRUE(a.saw("+b/" + std::to_string(epoch)));
  EXPECT_LT(now() - begin, kTtl);
  EXPECT_EQ(b->join(some_member("b")).status().code(), ErrorCode::kUnavailable);

  // For readers that are no members.
  const ClusterContents contents =
      take(read_cluster({{{"127.0.0.1", etcd.port()}}, "test"}, kNanosPerSecond));
  ASSERT_EQ(contents.members.size(), 4u);
  EXPECT_EQ(contents.members[1].id, id_of(again));
  EXPECT_EQ(take(read_cluster({{{"127.0.0.1", etcd.port()}}, "tes"}, kNanosPerSecond)).members.size(), 0u);

  // What others write under the prefix is no member and no leader, and does no harm.
  for (const char* key :
       {"kvasir/test/members/x", "kvasir/test/leader", "kvasir/test/members/ /", "kvasir/test/z"}) {
    EtcdClient client({{"127.0.0.1", etcd.port()}}, kNanosPerSecond);
    take(client.put(key, "garbage", 0));
  }
  c->leave();
  ASSERT_TRUE(a.saw_any<MemberLeft>());
  EXPECT_EQ(a->members().size(), 2u);
  EXPECT_EQ(a->leader(), std::nullopt);
  const Status in_the_way = Watcher(etcd.port())->join(some_member("x")).status();
  EXPECT_NE(in_the_way.message().find("delete it"), std::string::npos) << in_the_way.message();
  const Status bad = Watcher(etcd.port())->join(some_member("a/b")).status();
  EXPECT_EQ(bad.code(), ErrorCode::kInvalidArgument);
}

// A leader that is cut off from etcd: its lease ends, another is elected, and it learns so when it is back.
TEST(EtcdMembership, ALeaderThatIsCutOffIsReplacedAndComesBackWithANewEpoch) {
  if (!EtcdProcess::installed()) GTEST_SKIP() << "no etcd here: apt-get install etcd-server";
  EtcdProcess etcd;
  FaultyProxy link(etcd.port());
  Watcher a(link.port()), b(etcd.port()), c(etcd.port());
  a->campaign();
  take(a->join(some_member("a")));
  ASSERT_TRUE(a.saw_leader("a"));
  take(b->join(some_member("b")));
  take(c->join(some_member("c")));
  b->campaign();
  c->campaign();
  ASSERT_TRUE(a.saw_joined("c"));
  ASSERT_TRUE(b.saw_leader("a"));
  const Leader first = b->leader().value();
  EXPECT_EQ(first.id, id_of(a));
  EXPECT_EQ(a->leader(), first);

  const PeerId old = id_of(a);
  const Nanos cut = now();
  link.cut();
  ASSERT_TRUE(b.saw([&](const MembershipEvent& e) {
    const std::string text = describe(e);
    return text == "-" + text_of(old) || text == "leader=none";
  }));
  const Nanos noticed = now();
  ASSERT_TRUE(b.saw_any<LeaderElected>());
  const Nanos elected = now();
  const Leader next = b->leader().value();
  EXPECT_GT(next.term, first.term);
  EXPECT_NE(next.id.instance, "a");
  std::printf("ttl %d s: death noticed %.2f s after the cut, another leader after %.2f s\n", int{kTtlS},
              to_seconds(noticed - cut), to_seconds(elected - cut));
  // Renewed at a third of the ttl, looked for twice a second.
  EXPECT_GT(noticed - cut, kTtl / 2);
  EXPECT_LT(elected - cut, kTtl + 8 * kNanosPerSecond);

  // The one that is cut off considers none dead.
  ASSERT_TRUE(a.saw_any<DirectoryDown>());
  EXPECT_TRUE(a->down_since().has_value());
  EXPECT_EQ(a->members().size(), 2u);
  EXPECT_EQ(a.all().find('-'), std::string::npos) << a.all();
  // Its name is not free of it while it lives and wants back, but the old life is over.
  link.heal();
  ASSERT_TRUE(a.saw("lost=" + text_of(old)));
  ASSERT_TRUE(a.saw_any<Rejoined>());
  ASSERT_TRUE(a.saw_any<DirectoryUp>());
  EXPECT_EQ(a->down_since(), std::nullopt);
  EXPECT_NE(id_of(a).epoch, old.epoch);
  EXPECT_EQ(a->leader(), next);
  ASSERT_TRUE(b.saw("+" + text_of(id_of(a))));
  ASSERT_TRUE(c.saw("+" + text_of(id_of(a))));
  EXPECT_EQ(c->leader(), next);

  // Standing back: another takes over, with a greater term.
  Watcher& leading = next.id.instance == "b" ? b : c;
  Watcher& other = next.id.instance == "b" ? c : b;
  a->resign();
  other.skip();
  leading->resign();
  ASSERT_TRUE(other.saw_leader(other->self().instance));
  EXPECT_GT(other->leader()->term, next.term);
  ASSERT_TRUE(leading.saw_leader(other->self().instance));
}

// To be asked for again while there is no life changes nothing.
TEST(EtcdMembership, ALifeThatIsGivenUpIsFollowedByOneNewOne) {
  if (!EtcdProcess::installed()) GTEST_SKIP() << "no etcd here: apt-get install etcd-server";
  EtcdProcess etcd;
  FaultyProxy link(etcd.port());
  Watcher a(link.port()), b(etcd.port());
  take(a->join(some_member("a")));
  take(b->join(some_member("b")));
  const PeerId old = id_of(a);
  link.cut();
  a->rejoin();
  ASSERT_TRUE(a.saw("lost=" + text_of(old)));
  EXPECT_EQ(id_of(a).epoch, 0u);
  a->rejoin();
  link.heal();
  ASSERT_TRUE(a.saw_any<Rejoined>());
  ASSERT_TRUE(b.saw("-" + text_of(old)));
  ASSERT_TRUE(b.saw_joined("a"));
  a->campaign();
  ASSERT_TRUE(a.saw_leader("a"));
  const std::string told = a.all();
  EXPECT_EQ(told.find("rejoined="), told.rfind("rejoined=")) << told;
}

TEST(EtcdMembership, AKilledInstanceGetsItsNameAgainWhenItsLeaseHasEnded) {
  if (!EtcdProcess::installed()) GTEST_SKIP() << "no etcd here: apt-get install etcd-server";
  EtcdProcess etcd;
  FaultyProxy link(etcd.port());
  Watcher a(etcd.port());
  take(a->join(some_member("a")));
  PeerId old;
  {
    Watcher killed(link.port(), 200 * kNanosPerMilli);
    take(killed->join(some_member("k")));
    old = id_of(killed);
    link.cut();
    const Nanos begin = now();
    killed->leave();
    // Without an answer, leaving ends all the same.
    EXPECT_LT(now() - begin, 10 * kNanosPerSecond);
  }
  Watcher next(etcd.port());
  const Nanos begin = now();
  const uint64_t epoch = take(next->join(some_member("k")));
  std::printf("ttl %d s: a killed instance's name is free after %.2f s\n", int{kTtlS},
              to_seconds(now() - begin));
  EXPECT_NE(epoch, old.epoch);
  ASSERT_TRUE(a.saw("-" + text_of(old)));
  ASSERT_TRUE(a.saw("+k/" + std::to_string(epoch)));

  // A leave() while join() waits for a name ends the join.
  Watcher late(etcd.port());
  std::thread leaver([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    late->leave();
  });
  const Status status = late->join(some_member("k")).status();
  leaver.join();
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable) << status.message();

  // Deleting a member's key ends that life of it.
  const PeerId before = id_of(next);
  EtcdClient client({{"127.0.0.1", etcd.port()}}, kNanosPerSecond);
  for (const EtcdKeyValue& entry : take(client.range("kvasir/test/members/k")).entries) {
    take(client.remove(entry.key, entry.create_revision));
  }
  ASSERT_TRUE(next.saw("lost=" + text_of(before)));
  ASSERT_TRUE(next.saw_any<Rejoined>());
  ASSERT_TRUE(a.saw("-" + text_of(before)));
  ASSERT_TRUE(a.saw("+" + text_of(id_of(next))));
}

TEST(EtcdMembership, NoneIsLostWhenEtcdDiesHangsOrForgetsItsHistory) {
  if (!EtcdProcess::installed()) GTEST_SKIP() << "no etcd here: apt-get install etcd-server";
  EtcdProcess etcd;
  Watcher a(etcd.port()), b(etcd.port());
  a->campaign();
  take(a->join(some_member("a")));
  take(b->join(some_member("b")));
  ASSERT_TRUE(a.saw_joined("b"));
  ASSERT_TRUE(b.saw_leader("a"));
  const PeerId first_a = id_of(a), first_b = id_of(b);
  const Leader leader = b->leader().value();

  etcd.kill();
  const Nanos killed = now();
  ASSERT_TRUE(a.saw_any<DirectoryDown>());
  ASSERT_TRUE(b.saw_any<DirectoryDown>());
  EXPECT_LT(now() - killed, 10 * kNanosPerSecond);
  EXPECT_LE(b->down_since().value(), now());
  // Longer than a lease: leases do not end while etcd is dead.
  while (now() - killed < kTtl + kNanosPerSecond) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(b->members().size(), 1u);
  const Nanos started = now();
  etcd.restart();
  ASSERT_TRUE(a.saw_any<DirectoryUp>());
  ASSERT_TRUE(b.saw_any<DirectoryUp>());
  std::printf("etcd killed and started again: known %.2f s after its start\n", to_seconds(now() - started));

  // Hanging is told as well, and a history that is gone meanwhile does no harm.
  etcd.freeze();
  ASSERT_TRUE(a.saw_any<DirectoryDown>());
  etcd.thaw();
  ASSERT_TRUE(a.saw_any<DirectoryUp>());
  EtcdClient client({{"127.0.0.1", etcd.port()}}, kNanosPerSecond);
  const int64_t revision = take(client.put("elsewhere", "", 0));
  etcd.post("/v3/kv/compaction", "{\"revision\":\"" + std::to_string(revision) + "\"}");

  // The view is followed again, and nothing else has happened.
  Watcher c(etcd.port());
  take(c->join(some_member("c")));
  ASSERT_TRUE(a.saw_joined("c"));
  ASSERT_TRUE(b.saw_joined("c"));
  EXPECT_EQ(id_of(a), first_a);
  EXPECT_EQ(id_of(b), first_b);
  EXPECT_EQ(b->leader(), leader);
  EXPECT_EQ(a.all().find('-'), std::string::npos) << a.all();
  EXPECT_EQ(b.all().find('-'), std::string::npos) << b.all();
  EXPECT_EQ(b.all().find("lost"), std::string::npos) << b.all();
}

TEST(EtcdMembership, JoiningWithoutEtcdIsAClearErrorAndMayBeTriedAgain) {
  const uint16_t port = dead_port();
  Watcher a(port);
  const Status status = a->join(some_member("a")).status();
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  const std::string said = "etcd at 127.0.0.1:" + std::to_string(port) + " does not answer (";
  EXPECT_TRUE(status.message().starts_with(said)) << status.message();
  EXPECT_NE(status.message().find("Connection refused"), std::string::npos) << status.message();
  EXPECT_EQ(a->join(some_member("a")).status().message(), status.message());
  RudeServer hello("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", Manners::kAnswerAndStay);
  EXPECT_EQ(Watcher(hello.port())->join(some_member("a")).status().code(), ErrorCode::kUnavailable);
  RudeServer silence("", Manners::kAnswerAndStay);
  const Nanos begin = now();
  EXPECT_EQ(Watcher(silence.port(), 300 * kNanosPerMilli)->join(some_member("a")).status().code(),
            ErrorCode::kUnavailable);
  EXPECT_LT(now() - begin, 3 * kNanosPerSecond);
}

}  // namespace
}  // namespace kvasir::test
