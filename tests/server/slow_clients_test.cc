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

namespace kvasir::test {
namespace {

constexpr const char* kOther = "127.0.0.2";

// The head of a request with a body of 8 MB, and the first 20 KB of that.
std::string slow_request() {
  return fmt::format("POST {} HTTP/1.1\r\nHost: t\r\nContent-Length: 8000000\r\n\r\n", kChatPath) +
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
  ASSERT_TRUE(chunked.send(
      fmt::format("POST {} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n \r\n", kChatPath)));
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

TEST(ConnectionQuota, CountsInAllAndByClient) {
  using enum ConnectionQuota::Verdict;
  ConnectionQuota quota(8, 0);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(quota.admit("a"), kAdmitted);
  EXPECT_EQ(quota.admit("a"), kClientFull) << "three quarters of all";
  EXPECT_EQ(quota.admit("b"), kAdmitted);
  EXPECT_EQ(quota.admit("c"), kAdmitted);
  EXPECT_EQ(quota.admit("b"), kFull);
  EXPECT_EQ(quota.admit("a"), kFull);
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
