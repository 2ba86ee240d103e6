// EtcdClient against a real etcd, and against servers that are none.
#include "cluster/membership/etcd_client.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "cluster/membership/etcd.grpc.pb.h"
#include "cluster/membership/faulty_server.h"
#include "support/cluster_certificates.h"
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

// Each call ends within its timeout, with an error that names the endpoint.
TEST(EtcdClient, WhatIsNotEtcdIsAnErrorInBoundedTime) {
  constexpr Nanos kTimeout = 150 * kNanosPerMilli;
  struct Case {
    std::string answer;
    Manners manners;
  };
  const std::vector<Case> cases = {
      {"", Manners::kAnswerAndStay},
      {"", Manners::kAnswerAndClose},
      {"SSH-2.0-OpenSSH_9.2\r\n", Manners::kAnswerAndClose},
      {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", Manners::kAnswerAndStay},
      {"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", Manners::kDribble},
      {std::string(1 << 20, '\xff'), Manners::kAnswerAndStay},
      // A header of HTTP/2's settings, and one of a frame that is too long.
      {std::string("\0\0\0\4\0\0\0\0\0\xff\xff\xff\0\0\0\0\0\1", 18), Manners::kAnswerAndStay},
      {std::string("\0\0\0\4\0\0\0\0\0", 9), Manners::kAnswerAndStay},
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
          << what << ": " << status.message();
    }
  }
}

namespace wire = etcdserverpb;

// A server that speaks etcd's protocol, and says what the test wants.
class FakeEtcd final : public wire::Watch::Service, public wire::Lease::Service {
 public:
  FakeEtcd() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(static_cast<wire::Watch::Service*>(this));
    builder.RegisterService(static_cast<wire::Lease::Service*>(this));
    server_ = builder.BuildAndStart();
    port_ = static_cast<uint16_t>(port);
  }
  ~FakeEtcd() override { server_->Shutdown(std::chrono::system_clock::now()); }
  uint16_t port() const { return port_; }

  std::vector<wire::WatchResponse> watch_says;
  grpc::Status watch_ends;
  bool renews = true;

 private:
  grpc::Status Watch(grpc::ServerContext*,
                     grpc::ServerReaderWriter<wire::WatchResponse, wire::WatchRequest>* stream) override {
    wire::WatchRequest request;
    stream->Read(&request);
    for (const wire::WatchResponse& each : watch_says) stream->Write(each);
    if (watch_ends.ok()) stream->Read(&request);  // until the client goes
    return watch_ends;
  }
  grpc::Status LeaseGrant(grpc::ServerContext*, const wire::LeaseGrantRequest*,
                          wire::LeaseResponse*) override {
    return grpc::Status::OK;  // without a number
  }
  grpc::Status LeaseKeepAlive(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<wire::LeaseResponse, wire::LeaseRequest>* stream) override {
    wire::LeaseRequest request;
    for (int64_t count = 1; stream->Read(&request); ++count) {
      if (!renews) continue;
      wire::LeaseResponse stale, answer;
      stale.set_id(request.id() + 1);
      answer.set_id(request.id());
      answer.set_ttl(count);
      stream->Write(stale);
      stream->Write(answer);
    }
    return grpc::Status::OK;
  }

  uint16_t port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(EtcdClient, LeasesAreRenewedByOneStreamAndASilentOneIsAnError) {
  FakeEtcd etcd;
  EtcdClient client(at_ports({etcd.port()}), 300 * kNanosPerMilli);
  for (int64_t count = 1; count < 4; ++count) EXPECT_EQ(take(client.keep_alive(7)).ttl_s, count);
  EXPECT_EQ(client.grant(5).status().code(), ErrorCode::kCorrupt);
  etcd.renews = false;
  EXPECT_EQ(client.keep_alive(7).status().code(), ErrorCode::kUnavailable);
  etcd.renews = true;
  EXPECT_EQ(take(client.keep_alive(7)).ttl_s, 1);  // by another stream
  // What this server does not know is not etcd's.
  EXPECT_EQ(client.put("k/a", "", 0).status().code(), ErrorCode::kCorrupt);
}

// A watch that begins well and goes wrong later.
TEST(EtcdClient, AWatchThatGoesWrongEnds) {
  wire::WatchResponse created, event, cancelled, compacted;
  created.set_created(true);
  wire::KeyValue& kv = *event.add_events()->mutable_kv();
  kv.set_key("k/a");
  kv.set_mod_revision(2);
  cancelled.set_canceled(true);
  cancelled.set_cancel_reason("no leader");
  compacted.set_compact_revision(9);
  struct Case {
    std::vector<wire::WatchResponse> says;
    grpc::Status ends;
    std::string said;
  };
  for (const Case& c :
       {Case{{created, event, cancelled}, grpc::Status::OK, "no leader"},
        Case{{created, event, compacted}, grpc::Status::OK, "compacted"},
        Case{{created, event}, {grpc::StatusCode::UNAVAILABLE, "etcd leaves"}, "etcd leaves"}}) {
    FakeEtcd etcd;
    etcd.watch_says = c.says;
    etcd.watch_ends = c.ends;
    EtcdClient client(at_ports({etcd.port()}), 2 * kNanosPerSecond);
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
    EXPECT_FALSE(client.wait(0).ok());
  }
  FakeEtcd etcd;
  etcd.watch_says = {cancelled};
  EtcdClient client(at_ports({etcd.port()}), 2 * kNanosPerSecond);
  EXPECT_FALSE(client.watch("k/", 1).ok());
}

TEST(EtcdClient, WithTlsEtcdAndTheClientShowTheirCertificates) {
  if (!EtcdProcess::installed()) GTEST_SKIP() << "no etcd here: apt-get install etcd-server";
  const ClusterAuthority ours, others;
  EtcdProcess etcd(ours.issue("etcd,127.0.0.1,localhost"));
  const auto grants = [&](const HostPort& at, std::shared_ptr<const ClusterTls> tls) {
    return EtcdClient({at}, 2 * kNanosPerSecond, std::move(tls)).grant(5).status();
  };
  const auto here = [&](const char* host) { return HostPort{host, etcd.port()}; };
  EXPECT_TRUE(grants(here("127.0.0.1"), ours.tls("a")).ok());
  EXPECT_TRUE(grants(here("localhost"), ours.tls("a")).ok());
  EXPECT_EQ(grants(here("127.0.0.1"), nullptr).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(grants(here("127.0.0.1"), others.tls("a")).code(), ErrorCode::kUnavailable);
  // A client without a certificate, and an etcd that is not the host that was asked for.
  const ClusterTlsFiles theirs = others.issue("b");
  const auto mixed = take(ClusterTls::load({theirs.certfile, theirs.keyfile, ours.path() + "/ca.pem"}));
  EXPECT_EQ(grants(here("127.0.0.1"), mixed).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(grants(here("127.0.0.2"), ours.tls("a")).code(), ErrorCode::kUnavailable);

  // A certificate that is replaced is used by the next connection; the old one goes on meanwhile.
  const ClusterTlsFiles files = ours.issue("c");
  const auto tls = take(ClusterTls::load(files));
  EtcdClient client({here("127.0.0.1")}, 2 * kNanosPerSecond, tls);
  const int64_t lease = take(client.grant(30)).id;
  ASSERT_TRUE(client.watch("k/", 1).ok());
  ours.issue("c");
  ASSERT_TRUE(tls->reload("c").ok());
  EXPECT_EQ(take(client.keep_alive(lease)).ttl_s, 30);
  take(client.put("k/a", "", 0));
  EXPECT_EQ(gather(client, 1).size(), 1u);
  etcd.kill();
  EXPECT_FALSE(client.keep_alive(lease).ok());
  etcd.restart();
  EXPECT_EQ(take(client.keep_alive(lease)).ttl_s, 30);
}

}  // namespace
}  // namespace kvasir::test
