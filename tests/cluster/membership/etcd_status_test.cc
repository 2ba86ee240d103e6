// What members publish, by a real etcd that dies, is full, and comes back.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <thread>

#include "cluster/membership/faulty_server.h"
#include "cluster/membership/watcher.h"
#include "support/etcd_process.h"
#include "support/take.h"

namespace kvasir::test {
namespace {

// What a reader that is no member sees at an etcd.
class Onlooker {
 public:
  explicit Onlooker(const EtcdProcess& etcd)
      : etcd_(etcd), client_({{"127.0.0.1", etcd.port()}}, kNanosPerSecond) {}

  ClusterContents cluster() const {
    return take(read_cluster({{{"127.0.0.1", etcd_.port()}}, "test"}, kNanosPerSecond));
  }
  // Waits until it is what is shown of the instance; empty: nothing is.
  bool saw(const std::string& instance, const std::string& status) const {
    return in_time([&] {
      const ClusterContents now = cluster();
      const auto it = now.statuses.find(instance);
      return (it == now.statuses.end() ? "" : it->second) == status;
    });
  }
  // Waits until the instance has no key, whatever its members' list says.
  bool saw_key_gone(const std::string& instance) {
    return in_time([&] { return take(client_.range(ClusterKeys("test").status(instance))).entries.empty(); });
  }
  EtcdClient& client() { return client_; }

 private:
  static bool in_time(const std::function<bool()>& done) {
    for (const Nanos begin = now(); now() - begin < to_nanos(kMembershipPatience);) {
      if (done()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }
  static Nanos to_nanos(std::chrono::nanoseconds time) { return time.count(); }

  const EtcdProcess& etcd_;
  EtcdClient client_;
};

TEST(EtcdStatus, IsShownToOnlookersAndGoesWithItsMember) {
  if (!EtcdProcess::installed()) GTEST_SKIP() << "no etcd here: apt-get install etcd-server";
  EtcdProcess etcd;
  Onlooker onlooker(etcd);
  Watcher a(etcd.port()), b(etcd.port());
  a->publish("before it has joined");
  take(a->join(some_member("a")));
  take(b->join(some_member("b")));
  ASSERT_TRUE(a.saw_joined("b"));
  EXPECT_TRUE(onlooker.saw("a", "before it has joined"));
  EXPECT_EQ(onlooker.cluster().statuses.size(), 1u);

  // Any bytes, of the sizes that are promised; the last one wins.
  const std::string long_one(size_t{64} << 10, '"'), longest(kMaxStatusBytes, '\xff');
  for (int i = 0; i < 200; ++i) a->publish("status " + std::to_string(i));
  a->publish(long_one);
  b->publish(longest);
  b->publish(longest + "x");  // dropped
  b->publish(longest + "y");
  EXPECT_TRUE(onlooker.saw("a", long_one));
  EXPECT_TRUE(onlooker.saw("b", longest));
  const Nanos published = now();
  a->publish("last");
  EXPECT_TRUE(onlooker.saw("a", "last"));
  std::printf("a status is read %.0f ms after it was published\n", to_millis(now() - published));

  // Under the member's lease, and nothing to the members.
  const auto entries = take(onlooker.client().range("kvasir/test/status/")).entries;
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(static_cast<uint64_t>(entries[0].lease), id_of(a).epoch);
  EXPECT_EQ(a.all(), "+" + text_of(id_of(b)));
  EXPECT_EQ(b.all(), "+" + text_of(id_of(a)));

  // What is not of the life that is there is not shown.
  take(onlooker.client().put("kvasir/test/status/a", "forged", 0));
  EXPECT_TRUE(onlooker.saw("a", ""));
  a->publish("again");
  EXPECT_TRUE(onlooker.saw("a", "again"));

  b->leave();
  EXPECT_TRUE(onlooker.saw_key_gone("b"));
  EXPECT_TRUE(onlooker.saw("b", ""));
  b->publish("too late");
  EXPECT_TRUE(onlooker.saw_key_gone("b"));
}

TEST(EtcdStatus, ComesBackWithTheNextLife) {
  if (!EtcdProcess::installed()) GTEST_SKIP() << "no etcd here: apt-get install etcd-server";
  EtcdProcess etcd;
  FaultyProxy link(etcd.port());
  Onlooker onlooker(etcd);
  Watcher a(link.port());
  take(a->join(some_member("a")));
  a->publish("first");
  ASSERT_TRUE(onlooker.saw("a", "first"));
  const PeerId old = id_of(a);
  // As a death looks to the others: it is gone when its lease is.
  link.cut();
  ASSERT_TRUE(onlooker.saw_key_gone("a"));
  link.heal();
  ASSERT_TRUE(a.saw("lost=" + text_of(old)));
  ASSERT_TRUE(a.saw_any<Rejoined>());
  EXPECT_TRUE(onlooker.saw("a", "first"));

  // Published while it is cut off, and only the last of that. It waits for nothing: each call of etcd would
  // take half a second.
  link.cut();
  const Nanos begin = now();
  for (int i = 0; i < 40; ++i) a->publish("second " + std::to_string(i));
  a->publish("third");
  EXPECT_LT(now() - begin, 10 * kNanosPerSecond);
  ASSERT_TRUE(onlooker.saw_key_gone("a"));
  link.heal();
  EXPECT_TRUE(onlooker.saw("a", "third"));
  const auto entries = take(onlooker.client().range("kvasir/test/status/")).entries;
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(static_cast<uint64_t>(entries[0].lease), id_of(a).epoch);
}

TEST(EtcdStatus, IsWrittenWhenEtcdIsBack) {
  if (!EtcdProcess::installed()) GTEST_SKIP() << "no etcd here: apt-get install etcd-server";
  EtcdProcess etcd;
  Onlooker onlooker(etcd);
  Watcher a(etcd.port());
  const uint64_t epoch = take(a->join(some_member("a")));
  etcd.kill();
  a->publish("while it was dead");
  ASSERT_TRUE(a.saw_any<DirectoryDown>());
  etcd.restart();
  ASSERT_TRUE(a.saw_any<DirectoryUp>());
  EXPECT_TRUE(onlooker.saw("a", "while it was dead"));
  // Etcd may have come back with an older copy of its data.
  take(onlooker.client().put("kvasir/test/status/a", "older", static_cast<int64_t>(epoch)));
  ASSERT_TRUE(onlooker.saw("a", "older"));
  etcd.freeze();
  ASSERT_TRUE(a.saw_any<DirectoryDown>());
  etcd.thaw();
  ASSERT_TRUE(a.saw_any<DirectoryUp>());
  EXPECT_TRUE(onlooker.saw("a", "while it was dead"));
  EXPECT_EQ(id_of(a).epoch, epoch);
}

TEST(EtcdStatus, ThatCannotBeWrittenHarmsNoMembership) {
  if (!EtcdProcess::installed()) GTEST_SKIP() << "no etcd here: apt-get install etcd-server";
  EtcdProcess etcd;
  Onlooker onlooker(etcd);
  Watcher a(etcd.port()), b(etcd.port());
  const uint64_t epoch = take(a->join(some_member("a")));
  take(b->join(some_member("b")));
  ASSERT_TRUE(a.saw_joined("b"));
  // An etcd whose disk is full renews leases and takes nothing.
  const std::string alarm = R"({"action":"ACTIVATE","alarm":"NOSPACE"})";
  ASSERT_NE(etcd.post("/v3/maintenance/alarm", alarm).find("200 OK"), std::string::npos);
  ASSERT_FALSE(onlooker.client().put("elsewhere", "", 0).ok());
  a->publish("kept");
  for (const Nanos begin = now(); now() - begin < kTtl + kNanosPerSecond;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_EQ(id_of(a).epoch, epoch);
  EXPECT_EQ(a.all(), "+" + text_of(id_of(b)));
  EXPECT_EQ(b->members().size(), 1u);
  const std::string over = R"({"action":"DEACTIVATE","alarm":"NOSPACE"})";
  ASSERT_NE(etcd.post("/v3/maintenance/alarm", over).find("200 OK"), std::string::npos);
  EXPECT_TRUE(onlooker.saw("a", "kept"));
  EXPECT_EQ(a.all(), "+" + text_of(id_of(b)));
}

// All together are more than one answer of etcd's may hold here.
TEST(EtcdStatus, ManyLongOnesKeepNoneFromJoining) {
  if (!EtcdProcess::installed()) GTEST_SKIP() << "no etcd here: apt-get install etcd-server";
  EtcdProcess etcd;
  Onlooker onlooker(etcd);
  Watcher a(etcd.port());
  take(a->join(some_member("a")));
  for (int i = 0; i < 20; ++i) {
    take(onlooker.client().put("kvasir/test/status/x" + std::to_string(i), std::string(kMaxStatusBytes, 'x'),
                               0));
  }
  a->publish("among many");
  Watcher b(etcd.port());
  take(b->join(some_member("b")));
  ASSERT_TRUE(a.saw_joined("b"));
  EXPECT_TRUE(onlooker.saw("a", "among many"));
  EXPECT_EQ(onlooker.cluster().statuses.size(), 1u);
  EXPECT_EQ(a.all(), "+" + text_of(id_of(b)));
}

}  // namespace
}  // namespace kvasir::test
