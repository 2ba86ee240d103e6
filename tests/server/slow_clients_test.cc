// Clients that hold connections and say little: they leave room for others, and do not stay.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/connection_quota.h"
#include "server/running_server.h"
#include "server/waiting_connections.h"

namespace kvasir::test {
namespace {

constexpr const char* kOther = "127.0.0.2";

// The head of a request with a body of 8 MB, and the first 20 KB of that.
std::string slow_request() {
  return fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n", kChatPath) +
         std::string(20'000, ' ');
}

std::vector<std::unique_ptr<HttpClient>> slow_clients(uint16_t port, size_t count) {
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (size_t i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port));
    clients.back()->send(slow_request());  // false where it was refused already
  }
  return clients;
}

HttpAnswer ask_from(const char* address, uint16_t port, const std::string& request) {
  HttpClient client(port, 0, address);
  EXPECT_TRUE(client.send(request));
  return client.receive().value_or(HttpAnswer{});
}

TEST(SlowClients, OneAddressLeavesConnectionsToOthers) {
  ServerOptions options = test_options();
  options.limits.max_connections = 200;
  RunningServer server(say("Hello"), options);
  const auto slow = slow_clients(server.port(), 400);
  EXPECT_EQ(ask_from(kOther, server.port(), get("/health")).status, 200);
  EXPECT_EQ(ask_from(kOther, server.port(), post(kChatPath, chat_body())).status, 200);
  EXPECT_EQ(ask_from(kOther, server.port(), get("/metrics")).status, 200);
}

TEST(SlowClients, AnAddressThatHasAllItsConnectionsIsToldSo) {
  ServerOptions options = test_options();
  options.limits.max_connections = 10;
  options.limits.max_connections_per_address = 3;
  RunningServer server(say("Hello"), options);
  const auto slow = slow_clients(server.port(), 3);
  ASSERT_EQ(ask_from(kOther, server.port(), get("/health")).status,
            200);  // the three were accepted before it
  const HttpAnswer refused = server.ask(get("/health"));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_NE(refused.body.find("\"code\":\"too_many_connections\""), std::string::npos);
  EXPECT_NE(refused.body.find("from this address"), std::string::npos);
  // A place that is given back can be had again.
  slow[0]->close();
  HttpAnswer answer;
  for (int i = 0; i < 500 && answer.status != 200; ++i) answer = server.ask(get("/health"));
  EXPECT_EQ(answer.status, 200);
}

TEST(SlowClients, ABodyThatComesTooSlowlyEndsWith408) {
  ServerOptions options = test_options();
  options.limits.min_body_bytes_per_s = 10'000;
  options.limits.body_grace = 200 * kNanosPerMilli;
  RunningServer server(say("Hello"), options);
  HttpClient stuck(server.port());
  const auto begin = std::chrono::steady_clock::now();
  // What came at once counts for the first period alone.
  ASSERT_TRUE(stuck.send(slow_request()));
  HttpClient chunked(server.port());
  ASSERT_TRUE(chunked.send(fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n \r\n", kChatPath)));
  const HttpAnswer answer = stuck.receive().value_or(HttpAnswer{});
  const auto taken = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(answer.status, 408);
  EXPECT_EQ(answer.headers.at("connection"), "close");
  EXPECT_NE(answer.body.find("10000 bytes per second"), std::string::npos) << answer.body;
  EXPECT_GE(taken, std::chrono::milliseconds(390));
  EXPECT_LT(taken, std::chrono::seconds(5));
  EXPECT_EQ(chunked.receive().value_or(HttpAnswer{}).status, 408);
}

TEST(SlowClients, ABodyThatKeepsTheRateIsTakenHoweverLongItTakes) {
  ServerOptions options = test_options();
  options.limits.min_body_bytes_per_s = 1000;
  options.limits.body_grace = kNanosPerSecond;
  RunningServer server(say("Hello"), options);
  const std::string request = post(kChatPath, chat_body() + std::string(25'000, ' '));
  HttpClient client(server.port());
  size_t sent = 0;
  while (sent < request.size()) {  // ten times the rate, for more than two graces
    const size_t piece = std::min<size_t>(1000, request.size() - sent);
    ASSERT_TRUE(client.send(request.substr(sent, piece)));
    sent += piece;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(client.receive().value_or(HttpAnswer{}).status, 200);
}

// Sockets that say nothing, or no whole header, from so many addresses.
std::vector<std::unique_ptr<HttpClient>> idle_clients(uint16_t port, int addresses, int each) {
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < addresses * each; ++i) {
    const std::string from = fmt::format("127.0.0.{}", 10 + i % addresses);
    clients.push_back(std::make_unique<HttpClient>(port, 0, from.c_str()));
    if (i % 2 == 0) clients.back()->send("GET /health HTTP/1.1\r\n");  // false where it was closed already
  }
  return clients;
}

TEST(SlowClients, IdleConnectionsMakeWayForNewOnes) {
  ServerOptions options = test_options();
  options.limits.max_connections = 40;
  RunningServer server(say("Hello"), options);
  HttpClient busy(server.port());
  server.backend().hold(true);
  ASSERT_TRUE(busy.send(post(kChatPath, chat_body())));
  ASSERT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.live() == 1; }));
  const auto idle = idle_clients(server.port(), 8, 25);
  EXPECT_EQ(ask_from(kOther, server.port(), get("/health")).status, 200);
  server.backend().hold(false);
  EXPECT_EQ(ask_from(kOther, server.port(), post(kChatPath, chat_body())).status, 200);
  EXPECT_EQ(busy.receive().value_or(HttpAnswer{}).status, 200) << "one with a request stays";
  const std::string metrics = ask_from(kOther, server.port(), get("/metrics")).body;
  EXPECT_NE(metrics.find("http_connections_refused_total{model_name=\"test-model\"} 0\n"), std::string::npos);
  // 200 idle ones and four others came, for 40 places.
  EXPECT_NE(metrics.find("http_connections_evicted_total{model_name=\"test-model\"} 16"), std::string::npos);
}

TEST(SlowClients, IdleConnectionsOfOneAddressMakeWayForItsOwn) {
  ServerOptions options = test_options();
  options.limits.max_connections = 40;
  options.limits.max_connections_per_address = 5;
  RunningServer server(say("Hello"), options);
  HttpClient other(server.port(), 0, kOther);
  ASSERT_TRUE(other.send(get("/health")) && other.receive());
  const auto idle = idle_clients(server.port(), 1, 20);
  EXPECT_EQ(ask_from("127.0.0.10", server.port(), get("/health")).status, 200);
  ASSERT_TRUE(other.send(get("/health")));
  EXPECT_EQ(other.receive().value_or(HttpAnswer{}).status, 200) << "an older one of another address stays";
}

// Eight clients of two addresses take all the places of such a server.
ServerOptions eight_places() {
  ServerOptions options = test_options();
  options.limits.max_connections = 8;
  options.limits.stall_time = 50 * kNanosPerMilli;
  return options;
}

std::vector<std::unique_ptr<HttpClient>> eight_clients(uint16_t port, const std::string& request) {
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port, 4096, i < 6 ? "127.0.0.10" : "127.0.0.11"));
    EXPECT_TRUE(clients.back()->send(request));
  }
  return clients;
}

// Asks until it is let in.
bool let_in(uint16_t port, const std::string& request) {
  for (int i = 0; i < 500; ++i) {
    HttpClient client(port, 0, kOther);
    if (client.send(request) && client.receive().value_or(HttpAnswer{}).status == 200) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(SlowClients, ReadersWhoseAnswersRestMakeWay) {
  ServerOptions options = eight_places();
  options.model_names = {
      std::string(4 << 20, 'm')};  // which the answer has twice: more than the kernel takes
  RunningServer server(say("Hello"), options);
  const auto readers = eight_clients(server.port(), get("/v1/models"));
  for (const auto& reader : readers) ASSERT_TRUE(reader->receive_until("HTTP/1.1 200"));
  EXPECT_TRUE(let_in(server.port(), get("/health")));
}

TEST(SlowClients, BodiesThatRestMakeWay) {
  RunningServer server(say("Hello"), eight_places());
  const auto silent = eight_clients(
      server.port(),
      fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n", kChatPath));
  EXPECT_TRUE(let_in(server.port(), post(kChatPath, chat_body())));
}

TEST(SlowClients, RequestsThatAreWorkedOnDoNotMakeWay) {
  RunningServer server(say("Hello"), eight_places());
  server.backend().hold(true);
  const auto busy = eight_clients(server.port(), post(kChatPath, chat_body()));
  ASSERT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.live() == 8; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(ask_from(kOther, server.port(), get("/health")).status, 503);
  server.backend().hold(false);
  for (const auto& client : busy) EXPECT_EQ(client->receive().value_or(HttpAnswer{}).status, 200);
}

TEST(SlowClients, AnswersThatAreNotTakenHaveSoMuchMemory) {
  ServerOptions options = test_options();
  options.model_names = {std::string(4 << 20, 'm')};
  options.limits.max_answers_bytes = 10 << 20;
  for (const bool stalls : {true, false}) {
    options.limits.stall_time = stalls ? kNanosPerSecond / 10 : 3600 * kNanosPerSecond;
    RunningServer server(say("Hello"), options);
    HttpClient first(server.port(), 4096), second(server.port());
    ASSERT_TRUE(first.send(get("/v1/models")) && first.receive_until("HTTP/1.1 200"));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ASSERT_TRUE(second.send(get("/v1/models")));
    EXPECT_TRUE(second.receive()) << "the newer one stays";
    EXPECT_EQ(bool(first.receive()), !stalls) << "two have more than that, and the first takes nothing";
  }
}

TEST(WaitingConnections, TheOldestOfAllAndOfAClient) {
  int objects[3];  // never looked into
  const auto connection = [&](int i) { return reinterpret_cast<Connection*>(&objects[i]); };
  WaitingConnections list;
  EXPECT_EQ(list.oldest(), nullptr);
  list.add(connection(0), "a", 1, 10);
  list.add(connection(1), "b", 2, 20);
  list.add(connection(2), "a", 3);
  list.add(connection(0), "a", 4, 40);  // it keeps its place
  EXPECT_EQ(list.since(connection(0)), 1);
  EXPECT_EQ(list.bytes(), 30u);
  EXPECT_EQ(list.oldest(), connection(0));
  EXPECT_EQ(list.oldest_of("b"), connection(1));
  list.remove(connection(0));
  EXPECT_EQ(list.oldest(), connection(1));
  EXPECT_EQ(list.oldest_of("a"), connection(2));
  EXPECT_EQ(list.bytes(), 20u);
  list.add(connection(0), "a", 5);
  list.remove(connection(1));
  EXPECT_EQ(list.oldest_of("b"), nullptr);
  EXPECT_EQ(list.oldest(), connection(2)) << "it comes again as the youngest";
  list.remove(connection(1));
}

TEST(ConnectionQuota, CountsInAllAndByClient) {
  using enum ConnectionQuota::Verdict;
  ConnectionQuota quota(8, 0);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(quota.admit("a"), kAdmitted);
  EXPECT_EQ(quota.admit("a"), kClientFull) << "three quarters of all";
  EXPECT_EQ(quota.admit("b"), kAdmitted);
  EXPECT_EQ(quota.admit("c"), kAdmitted);
  EXPECT_EQ(quota.admit("b"), kFull);
  EXPECT_EQ(quota.admit("a"), kFull);
  EXPECT_TRUE(quota.client_full("a"));
  EXPECT_FALSE(quota.client_full("c"));
  quota.release("a");
  EXPECT_EQ(quota.admit("b"), kAdmitted);
  quota.release("b");
  quota.release("b");
  EXPECT_EQ(quota.admit("a"), kAdmitted);
  ConnectionQuota one(1, 0);
  EXPECT_EQ(one.admit("a"), kAdmitted);
  EXPECT_EQ(one.admit("b"), kFull);
}

}  // namespace
}  // namespace kvasir::test
