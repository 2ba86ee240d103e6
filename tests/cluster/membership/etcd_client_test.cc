// EtcdClient against a real etcd, and against servers that are none.
#include "cluster/membership/etcd_client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>

#include "base/base64.h"
#include "base/clock.h"
#include "cluster/membership/faulty_server.h"
#include "support/etcd_process.h"
#include "support/take.h"

namespace kvasir::test {
namespace {

constexpr Nanos kPatience = 5 * kNanosPerSecond;

std::vector<HostPort> at_ports(const std::vector<uint16_t>& ports) {
  std::vector<HostPort> out;
  for (uint16_t port : ports) out.push_back({"127.0.0.1", port});
  return out;
}

double median_ms(int times, const std::function<void()>& call) {
  std::vector<double> all;
  for (int i = 0; i < times; ++i) {
    const Nanos begin = MonotonicClock().now();
    call();
    all.push_back(to_millis(MonotonicClock().now() - begin));
  }
  std::nth_element(all.begin(), all.begin() + times / 2, all.end());
  return all[static_cast<size_t>(times / 2)];
}

// Everything that the watch brings, until `count` events are there.
std::vector<EtcdEvent> gather(EtcdClient& client, size_t count) {
  std::vector<EtcdEvent> all;
  for (const Nanos until = MonotonicClock().now() + kPatience;
       all.size() < count && MonotonicClock().now() < until;) {
    for (EtcdEvent& event : take(client.wait(kNanosPerSecond))) all.push_back(std::move(event));
  }
  return all;
}

TEST(EtcdClient, LeasesKeysAndWatches) {
  if (!EtcdProcess::installed()) GTEST_SKIP() << "no etcd here: apt-get install etcd-server";
  EtcdProcess etcd;
  EtcdClient client(at_ports({etcd.port()}), kPatience);

  // Leases.
  const EtcdLease lease = take(client.grant(30));
  EXPECT_EQ(lease.ttl_s, 30);
  EXPECT_EQ(take(client.keep_alive(lease.id)).ttl_s, 30);
  EXPECT_GE(take(client.time_to_live(lease.id)).ttl_s, 28);
  EXPECT_EQ(take(client.keep_alive(lease.id + 1)).ttl_s, 0);
  EXPECT_LT(take(client.time_to_live(lease.id + 1)).ttl_s, 0);
  EXPECT_TRUE(client.revoke(lease.id + 1).ok());
  EXPECT_EQ(client.put("k/x", "", lease.id + 1).status().code(), ErrorCode::kNotFound);
  EXPECT_EQ(client.create("k/x", "", lease.id + 1).status().code(), ErrorCode::kNotFound);

  // Keys, their bytes as they are; a prefix holds what begins with it and nothing else.
  const std::string bytes("\0\xff\n\"", 4);
  const EtcdTxn made = take(client.create("k/a", bytes, lease.id));
  EXPECT_TRUE(made.done);
  const EtcdTxn again = take(client.create("k/a", "other", lease.id));
  EXPECT_FALSE(again.done);
  EXPECT_EQ(again.found.value, bytes);
  EXPECT_EQ(again.found.create_revision, made.revision);
  EXPECT_EQ(again.found.lease, lease.id);
  take(client.put("k0", "outside", 0));
  take(client.put("k/b", "", 0));
  const EtcdSnapshot snapshot = take(client.range("k/"));
  ASSERT_EQ(snapshot.entries.size(), 2u);
  EXPECT_EQ(snapshot.entries[1].key, "k/b");
  EXPECT_EQ(snapshot.entries[1].lease, 0);

  // A watch brings what came after the snapshot, also what came before the watch, in order.
  take(client.put("k/b", "1", 0));
  ASSERT_TRUE(client.watch("k/", snapshot.revision + 1).ok());
  take(client.put("k0", "outside again", 0));
  EXPECT_FALSE(take(client.remove("k/a", made.revision + 1)).done);
  EXPECT_TRUE(take(client.remove("k/a", made.revision)).done);
  EXPECT_FALSE(take(client.remove("k/a", made.revision)).done);
  const std::vector<EtcdEvent> events = gather(client, 2);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].entry.key + "=" + events[0].entry.value, "k/b=1");
  EXPECT_TRUE(events[1].deleted);
  EXPECT_EQ(events[1].entry.key, "k/a");
  EXPECT_GT(events[1].entry.mod_revision, events[0].entry.mod_revision);
  EXPECT_TRUE(take(client.wait(0)).empty());

  // What is revoked takes its keys along.
  take(client.put("k/c", "", lease.id));
  EXPECT_TRUE(client.revoke(lease.id).ok());
  const std::vector<EtcdEvent> gone = gather(client, 2);
  ASSERT_EQ(gone.size(), 2u);
  EXPECT_TRUE(gone[1].deleted);
  EXPECT_EQ(gone[1].entry.key, "k/c");

  // A watch of what is compacted says so.
  EXPECT_NE(
      etcd.post("/v3/kv/compaction", R"({"revision":")" + std::to_string(gone[1].entry.mod_revision) + "\"}")
          .find("200 OK"),
      std::string::npos);
  Status ended = client.watch("k/", snapshot.revision);
  for (int i = 0; i < 50 && ended.ok(); ++i) ended = client.wait(kPatience / 50).status();
  ASSERT_FALSE(ended.ok());
  EXPECT_NE(ended.message().find("compacted"), std::string::npos) << ended.message();
  EXPECT_FALSE(client.wait(0).ok());

  // wake() and cancel() from another thread.
  const int64_t revision = take(client.range("k/")).revision;
  ASSERT_TRUE(client.watch("k/", revision + 1).ok());
  const Nanos begin = MonotonicClock().now();
  std::thread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    client.wake();
  });
  while (MonotonicClock().now() - begin < 40 * kNanosPerMilli) take(client.wait(20 * kNanosPerSecond));
  waker.join();
  EXPECT_LT(MonotonicClock().now() - begin, kPatience);
  client.cancel();
  EXPECT_EQ(client.grant(5).status().code(), ErrorCode::kUnavailable);
  client.resume();
  const int64_t another = take(client.grant(30)).id;

  // How long it takes.
  std::printf("p50 of 200: put %.2f ms, keep_alive %.2f ms, range of a prefix %.2f ms\n",
              median_ms(200, [&] { take(client.put("k/m", "value", another)); }),
              median_ms(200, [&] { take(client.keep_alive(another)); }),
              median_ms(200, [&] { take(client.range("k/")); }));
}

TEST(EtcdClient, GoesOnWithAnotherEndpointAndEndsTheWatchOfTheFirst) {
  if (!EtcdProcess::installed()) GTEST_SKIP() << "no etcd here: apt-get install etcd-server";
  EtcdProcess etcd;
  FaultyProxy first(etcd.port());
  EtcdClient client({{"127.0.0.1", dead_port()}, {"localhost", first.port()}, {"127.0.0.1", etcd.port()}},
                    500 * kNanosPerMilli);
  const int64_t revision = take(client.put("k/a", "", 0));
  ASSERT_TRUE(client.watch("k/", revision + 1).ok());
  EXPECT_TRUE(take(client.wait(0)).empty());
  first.cut();
  take(client.put("k/b", "", 0));
  const Status ended = client.wait(kPatience).status();
  ASSERT_FALSE(ended.ok());
  ASSERT_TRUE(client.watch("k/", revision + 1).ok());
  EXPECT_EQ(gather(client, 1).size(), 1u);
}

std::string ok_with(const std::string& body) {
  return "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

// Each call ends within its timeout, with an error that names the endpoint.
TEST(EtcdClient, WhatIsNotEtcdIsAnErrorInBoundedTime) {
  constexpr Nanos kTimeout = 150 * kNanosPerMilli;
  struct Case {
    std::string answer;
    Manners manners;
    std::string said;
  };
  std::string chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 80; ++i) chunks += "10000\r\n" + std::string(65536, 'x') + "\r\n";
  const std::vector<Case> cases = {
      {"", Manners::kAnswerAndStay,
       "does not answer (does not answer in time): start it, or correct --cluster"},
      {"", Manners::kAnswerAndClose, "does not answer (closes the connection): start it"},
      {"SSH-2.0-OpenSSH_9.2\r\n", Manners::kAnswerAndClose, "is not etcd"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"hea", Manners::kAnswerAndClose,
       "closes the connection"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"hea", Manners::kAnswerAndStay, "in time"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", Manners::kAnswerAndStay,
       "answers more than"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", Manners::kAnswerAndStay, "is not etcd"},
      {chunks, Manners::kAnswerAndStay, ""},
      {ok_with("<html>hello</html>"), Manners::kAnswerAndStay, "is not JSON"},
      {ok_with("{}"), Manners::kAnswerAndStay, "is not etcd"},
      {ok_with("[[[["), Manners::kAnswerAndClose, "is not JSON"},
      {ok_with("{\"ID\":\"7\",\"TTL\":{}}"), Manners::kAnswerAndClose, "is not etcd"},
      {"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", Manners::kAnswerAndStay, "is not etcd"},
      {"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", Manners::kAnswerAndStay,
       "is unavailable (HTTP 503)"},
      {"HTTP/1.1 100 Continue\r\n\r\n", Manners::kAnswerAndStay, "is not etcd"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", Manners::kDribble, "in time"},
      {"HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'y'), Manners::kAnswerAndStay, "is not etcd"},
  };
  for (const Case& c : cases) {
    RudeServer server(c.answer, c.manners);
    EtcdClient client(at_ports({server.port()}), kTimeout);
    const std::vector<std::function<Status()>> calls = {
        [&] { return client.grant(5).status(); },
        [&] { return client.keep_alive(5).status(); },
        [&] { return client.range("k/").status(); },
        [&] { return client.create("k/a", "v", 5).status(); },
        [&] { return client.revoke(5); },
        [&] {
          const Status status = client.watch("k/", 1);
          return status.ok() ? client.wait(kTimeout).status() : status;
        },
    };
    for (size_t i = 0; i < calls.size(); ++i) {
      const Nanos begin = MonotonicClock().now();
      const Status status = calls[i]();
      const Nanos took = MonotonicClock().now() - begin;
      const std::string what = "call " + std::to_string(i) + " of " + c.answer.substr(0, 60);
      ASSERT_FALSE(status.ok()) << what;
      EXPECT_LT(took, kTimeout + 2 * kNanosPerSecond) << what;
      EXPECT_NE(status.message().find("127.0.0.1:" + std::to_string(server.port())), std::string::npos)
          << what;
      if (i == 0) {
        EXPECT_NE(status.message().find(c.said), std::string::npos) << what << ": " << status.message();
      }
    }
  }
}

// A watch that begins well and goes wrong later.
TEST(EtcdClient, AWatchThatGoesWrongEnds) {
  const std::string head =
      "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"result\":{\"created\":true}}\n";
  const std::string event =
      R"({"result":{"events":[{"kv":{"key":"Zm9v","create_revision":"2","mod_revision":"2","value":"YmFy"}}]}})"
      "\n";
  struct Case {
    std::string rest;
    Manners manners;
    std::string said;
  };
  for (const Case& c :
       {Case{"garbage\n", Manners::kAnswerAndStay, "is not JSON"},
        Case{"", Manners::kAnswerAndClose, "closes the connection"},
        Case{"{\"error\":{\"message\":\"no leader\"}}\n", Manners::kAnswerAndStay, "no leader"},
        Case{std::string(5 << 20, '{'), Manners::kAnswerAndStay, "answers more than any"}}) {
    RudeServer server(head + event + c.rest, c.manners);
    EtcdClient client(at_ports({server.port()}), 2 * kNanosPerSecond);
    ASSERT_TRUE(client.watch("k/", 1).ok());
    size_t told = 0;
    Status ended;
    for (const Nanos until = MonotonicClock().now() + kPatience;
         ended.ok() && MonotonicClock().now() < until;) {
      const auto events = client.wait(100 * kNanosPerMilli);
      if (events.ok()) told += events->size();
      ended = events.status();
    }
    EXPECT_EQ(told, 1u) << c.said;
    ASSERT_FALSE(ended.ok()) << c.said;
    EXPECT_NE(ended.message().find(c.said), std::string::npos) << ended.message();
  }
}

}  // namespace
}  // namespace kvasir::test
