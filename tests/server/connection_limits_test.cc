// What clients may hold: room for bodies, jobs of those that left, bytes read ahead, answers not fetched.
#include <gtest/gtest.h>

#include <atomic>
#include <cctype>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "server/running_server.h"

namespace kvasir {
namespace {

using nlohmann::json;
using test::chat_body;
using test::FakeBackend;
using test::get;
using test::HttpAnswer;
using test::HttpClient;
using test::kChatPath;
using test::post;
using test::RunningServer;
using test::say;

bool metric_becomes(RunningServer& server, const std::string& line) {
  for (int i = 0; i < 2000; ++i) {
    if (server.ask(get("/metrics")).body.find("\nkvasir:" + line + "\n") != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

std::string body_bytes_line(uint64_t bytes) {
  return fmt::format("http_body_bytes{{model_name=\"test-model\"}} {}", bytes);
}

TEST(ConnectionLimits, ABodyThatIsOnlyAnnouncedTakesNoRoom) {
  RunningServer server(say("Hello"));
  std::vector<std::unique_ptr<HttpClient>> idle;
  for (int i = 0; i < 32; ++i) {
    idle.push_back(std::make_unique<HttpClient>(server.port()));
    ASSERT_TRUE(idle.back()->send(
        fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n{}\r\n\r\n", kChatPath,
                    i % 2 == 0 ? "Content-Length: 16777216" : "Transfer-Encoding: chunked")));
    EXPECT_EQ(idle.back()->receive().value_or(HttpAnswer{}).status, 100);
  }
  EXPECT_EQ(server.ask(post(kChatPath, chat_body())).status, 200);
  EXPECT_EQ(server.ask(post(kChatPath, chat_body() + std::string(1 << 20, ' '))).status, 200);
  EXPECT_TRUE(metric_becomes(server, body_bytes_line(0)));
}

TEST(ConnectionLimits, SmallBodiesAreTakenWhileLargeOnesFillTheRoom) {
  ServerOptions options = test::test_options();
  options.limits.max_bodies_bytes = 300'000;
  RunningServer server(say("Hello"), options);
  const std::string request = post(kChatPath, chat_body() + std::string(200'000, ' '));
  HttpClient first(server.port());
  ASSERT_TRUE(first.send(request.substr(0, request.size() - 1)));
  HttpAnswer second;
  for (int i = 0; i < 500 && second.status != 503; ++i) second = server.ask(request);
  EXPECT_EQ(second.status, 503);
  EXPECT_EQ(second.headers.at("connection"), "close");
  EXPECT_EQ(server.ask(post(kChatPath, chat_body() + std::string(60'000, ' '))).status, 200);
  ASSERT_TRUE(first.send(request.substr(request.size() - 1)));
  EXPECT_EQ(first.receive().value_or(HttpAnswer{}).status, 200);
  EXPECT_EQ(server.ask(request).status, 200);
}

TEST(ConnectionLimits, AJobHoldsItsRoomUntilItIsDoneAndWaitingOnesEndWithTheirClients) {
  ServerOptions options = test::test_options();
  options.limits.max_bodies_bytes = 1'000'000;
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  std::atomic<int> rendering{0};
  RunningServer server(say("x"), options, /*ready=*/false);
  ModelService service = server.service();
  service.render_chat = [released, &rendering](const ApiRequest& request) {
    ++rendering;
    released.wait();
    return test::render_test_chat(request);
  };
  server->serve(service);
  while (server.ask(get("/health")).status != 200) {
  }
  const std::string body = chat_body() + std::string(400'000, ' ');
  const auto send_and_leave = [&](uint64_t bytes_then) {
    HttpClient client(server.port());
    EXPECT_TRUE(client.send(post(kChatPath, body)));
    EXPECT_TRUE(metric_becomes(server, body_bytes_line(bytes_then)));
    while (rendering == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  // The first one is being prepared when its client leaves: its bytes are still there, so they still count.
  send_and_leave(body.size());
  EXPECT_TRUE(metric_becomes(server, "http_requests_total{model_name=\"test-model\",status=\"499\"} 1"));
  EXPECT_TRUE(metric_becomes(server, body_bytes_line(body.size())));
  // Those behind it are gone with their clients, so that there is always room for one more.
  for (int i = 0; i < 5; ++i) {
    send_and_leave(2 * body.size());
    EXPECT_TRUE(metric_becomes(server, body_bytes_line(body.size())));
  }
  HttpClient third(server.port());
  ASSERT_TRUE(third.send(post(kChatPath, body)));
  ASSERT_TRUE(metric_becomes(server, body_bytes_line(2 * body.size())));
  EXPECT_EQ(server.ask(post(kChatPath, body)).status, 503);
  release.set_value();
  EXPECT_EQ(third.receive().value_or(HttpAnswer{}).status, 200);
  EXPECT_EQ(rendering, 2);
  EXPECT_TRUE(metric_becomes(server, body_bytes_line(0)));
}

TEST(ConnectionLimits, ReadingAheadHasAnEndSoThatLeavingIsNoticed) {
  RunningServer server(say("Hello"));
  server.backend().hold(true);
  const std::string flood(200'000, 'x');
  HttpClient whole(server.port());
  ASSERT_TRUE(whole.send(post(kChatPath, chat_body())));
  ASSERT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.live() == 1; }));
  whole.send(flood);
  const auto answer = whole.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 400);
  EXPECT_EQ(answer->headers.at("connection"), "close");
  EXPECT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.live() == 0; }));

  HttpClient stream(server.port());
  ASSERT_TRUE(stream.send(post(kChatPath, chat_body(R"("stream":true)"))));
  ASSERT_TRUE(stream.receive_until("text/event-stream"));
  stream.send(flood);
  EXPECT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.live() == 0; }));
  EXPECT_EQ(server.backend().cancelled().size(), 2u);
}

TEST(ConnectionLimits, AnAnswerThatIsNotFetchedYetIsWaitedFor) {
  RunningServer server(test::repeat("abcdefgh"));
  HttpClient slow(server.port(), 4096);
  // Several megabytes: more than the kernel takes.
  ASSERT_TRUE(
      slow.send(post(kChatPath, chat_body(R"("logprobs":true,"top_logprobs":20,"max_tokens":4000)"))));
  ASSERT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.live() == 0; }));
  // Comes after all events of the generation.
  EXPECT_EQ(server.ask(get("/health")).status, 200);
  server->drain();
  EXPECT_FALSE(server->wait_idle(50 * kNanosPerMilli));
  const auto answer = slow.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(json::parse(answer->body)["choices"][0]["logprobs"]["content"].size(), 4000u);
  EXPECT_TRUE(server->wait_idle(10 * kNanosPerSecond));
}

}  // namespace
}  // namespace kvasir
