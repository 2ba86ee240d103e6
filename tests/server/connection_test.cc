// HTTP over loopback with clients that are slow, huge, cut short, wrong, impatient, or gone.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/random.h"
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

TEST(Connection, KeepsAliveAndEchoesTheRequestId) {
  RunningServer server(say("Hello"));
  HttpClient client(server.port());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.send(post(kChatPath, chat_body(), "X-Request-Id: abc-" + std::to_string(i) + "\r\n")));
    const auto answer = client.receive();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->headers.at("x-request-id"), "abc-" + std::to_string(i));
    EXPECT_EQ(answer->headers.at("connection"), "keep-alive");
    EXPECT_EQ(json::parse(answer->body)["choices"][0]["message"]["content"], "Hello");
  }
}

TEST(Connection, PipelinedRequestsAreAnsweredInOrder) {
  RunningServer server(say("Hello"));
  HttpClient client(server.port());
  std::string all;
  for (int i = 0; i < 10; ++i) {
    all += get("/health", "X-Request-Id: h" + std::to_string(i) + "\r\n");
    all += post(kChatPath, chat_body(i % 2 == 0 ? R"("stream":true)" : ""),
                "X-Request-Id: c" + std::to_string(i) + "\r\n");
  }
  ASSERT_TRUE(client.send(all));
  for (int i = 0; i < 10; ++i) {
    const auto health = client.receive();
    ASSERT_TRUE(health);
    EXPECT_EQ(health->headers.at("x-request-id"), "h" + std::to_string(i));
    const auto chat = client.receive();
    ASSERT_TRUE(chat);
    EXPECT_EQ(chat->status, 200);
    EXPECT_EQ(chat->headers.at("x-request-id"), "c" + std::to_string(i));
    EXPECT_NE(chat->body.find("lo"), std::string::npos);
  }
  EXPECT_TRUE(server.backend().cancelled().empty());
}

// While the last of them was answered, a read was under way, which brings the next request.
TEST(Connection, ARequestBehindPipelinedOnesIsReadAsItIs) {
  RunningServer server(say("Hello"));
  HttpClient client(server.port());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(client.send(get("/health", "X-Request-Id: a\r\n") +
                            post(kChatPath, chat_body(), "X-Request-Id: b\r\n")));
    for (const char* id : {"a", "b"}) {
      const auto answer = client.receive();
      ASSERT_TRUE(answer);
      EXPECT_EQ(answer->headers.at("x-request-id"), id);
    }
    ASSERT_TRUE(client.send(get("/health", "X-Request-Id: c\r\n")));
    const auto answer = client.receive();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->headers.at("x-request-id"), "c");
  }
}

TEST(Connection, OneByteAtATime) {
  RunningServer server(say("Hello"));
  HttpClient client(server.port());
  for (const char c : post(kChatPath, chat_body())) ASSERT_TRUE(client.send(std::string(1, c)));
  const auto answer = client.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
}

TEST(Connection, ChunkedRequestBody) {
  RunningServer server(say("Hello"));
  HttpClient client(server.port());
  const std::string body = chat_body();
  ASSERT_TRUE(client.send(
      std::string("POST ") + kChatPath +
      " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" +
      fmt::format("5\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n", body.substr(0, 5), body.size() - 5, body.substr(5)) +
      get("/health")));
  EXPECT_EQ(client.receive().value_or(HttpAnswer{}).status, 200);
  EXPECT_EQ(client.receive().value_or(HttpAnswer{}).body, R"({"status":"ok"})");
}

TEST(Connection, ExpectContinue) {
  RunningServer server(say("Hello"));
  HttpClient client(server.port());
  const std::string body = chat_body();
  const std::string request = post(kChatPath, body, "Expect: 100-continue\r\n");
  ASSERT_TRUE(client.send(request.substr(0, request.size() - body.size())));
  EXPECT_EQ(client.receive().value_or(HttpAnswer{}).status, 100);
  ASSERT_TRUE(client.send(body));
  EXPECT_EQ(client.receive().value_or(HttpAnswer{}).status, 200);
}

TEST(Connection, HttpOneZero) {
  RunningServer server(say("Hello"));
  const auto request = [](const std::string& fields) {
    const std::string body = chat_body(fields);
    return fmt::format("POST {} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", kChatPath, body.size(), body);
  };
  const HttpAnswer whole = server.ask(request(""));
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.headers.at("connection"), "close");
  const HttpAnswer stream = server.ask(request(R"("stream":true)"));
  EXPECT_EQ(stream.headers.count("transfer-encoding"), 0u);
  EXPECT_EQ(test::events(stream.body).back(), "[DONE]");
}

TEST(Connection, SizeLimits) {
  ServerOptions options = test::test_options();
  options.limits.max_body_bytes = 2000;
  options.limits.max_bodies_bytes = 3000;
  options.limits.small_body_bytes = 0;
  RunningServer server(say("Hello"), options);
  EXPECT_EQ(server.ask(post("/v1/completions", std::string(2001, ' '))).status, 413);
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  EXPECT_EQ(server.ask(head + "Content-Length: 99999999999\r\n\r\n").status, 413);
  const std::string chunk = fmt::format("{:x}\r\n{}\r\n", 1500, std::string(1500, ' '));
  EXPECT_EQ(server.ask(head + "Transfer-Encoding: chunked\r\n\r\n" + chunk + chunk).status, 413);
  EXPECT_EQ(server.ask(get("/health", "X-Long: " + std::string(40000, 'a') + "\r\n")).status, 431);

  // Two bodies at once are more than the server holds.
  HttpClient first(server.port());
  const std::string body = chat_body() + std::string(1800, ' ');
  const std::string request = post(kChatPath, body);
  ASSERT_TRUE(first.send(request.substr(0, request.size() - 5)));
  HttpAnswer second;
  for (int i = 0; i < 500 && second.status != 503; ++i) second = server.ask(request);
  EXPECT_EQ(second.status, 503);
  EXPECT_EQ(second.headers.count("retry-after"), 1u);
  ASSERT_TRUE(first.send(request.substr(request.size() - 5)));
  EXPECT_EQ(first.receive().value_or(HttpAnswer{}).status, 200);
  EXPECT_EQ(server.ask(request).status, 200);
}

TEST(Connection, Timeouts) {
  ServerOptions options = test::test_options();
  options.limits.header_timeout = 50 * kNanosPerMilli;
  options.limits.body_timeout = 50 * kNanosPerMilli;
  options.limits.idle_timeout = 50 * kNanosPerMilli;
  RunningServer server(say("Hello"), options);
  EXPECT_EQ(server.ask("GET /health HT").status, 408);
  const std::string request = post(kChatPath, chat_body());
  EXPECT_EQ(server.ask(request.substr(0, request.size() - 1)).status, 408);
  HttpClient idle(server.port());
  EXPECT_TRUE(idle.closed_within(5000));
  // A generation may take longer than any of them.
  server.backend().set_round_time(40 * kNanosPerMilli);
  EXPECT_EQ(server.ask(request).status, 200);
}

TEST(Connection, LeavingCancelsOnlyItsOwnRequest) {
  RunningServer server(test::repeat("ab"));
  server.backend().hold(true);
  for (const bool stream : {false, true}) {
    HttpClient stays(server.port());
    ASSERT_TRUE(stays.send(post(kChatPath, chat_body(R"("max_tokens":5)"))));
    auto leaves = std::make_unique<HttpClient>(server.port());
    const size_t submitted = server.backend().submitted().size();
    ASSERT_TRUE(leaves->send(post(kChatPath, chat_body(stream ? R"("stream":true)" : ""))));
    ASSERT_TRUE(server.backend().wait_for([&](const FakeBackend& b) { return b.live() == 2; })) << submitted;
    leaves.reset();
    ASSERT_TRUE(server.backend().wait_for([&](const FakeBackend& b) { return b.live() == 1; }));
    server.backend().hold(false);
    const auto answer = stays.receive();
    ASSERT_TRUE(answer);
    EXPECT_EQ(json::parse(answer->body)["usage"]["completion_tokens"], 5);
    ASSERT_TRUE(server.backend().wait_for([&](const FakeBackend& b) { return b.live() == 0; }));
    server.backend().hold(true);
  }
  EXPECT_EQ(server.backend().cancelled().size(), 2u);
  EXPECT_NE(server.ask(get("/metrics")).body.find("status=\"499\"} 2"), std::string::npos);
}

TEST(Connection, LeavingInTheMiddleOfAStreamCancels) {
  RunningServer server(test::repeat("ab"));
  server.backend().set_round_time(kNanosPerMilli);
  HttpClient client(server.port());
  ASSERT_TRUE(client.send(post(kChatPath, chat_body(R"("stream":true)"))));
  ASSERT_TRUE(client.receive_until("\"b\""));
  client.close();
  EXPECT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.live() == 0; }));
  EXPECT_EQ(server.backend().cancelled().size(), 1u);
  EXPECT_LT(server.backend().tokens_emitted(), 4000u);
}

TEST(Connection, AClientThatDoesNotReadIsGivenUpAndNoOtherNotices) {
  ServerOptions options = test::test_options();
  options.limits.write_timeout = 200 * kNanosPerMilli;
  RunningServer server(test::repeat("abcdefgh"), options);
  // More than the kernel takes on both sides: each token becomes an event with twenty log-probabilities.
  HttpClient slow(server.port(), 4096);
  ASSERT_TRUE(slow.send(post(kChatPath, chat_body(R"("stream":true,"logprobs":true,"top_logprobs":20)"))));
  ASSERT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.tokens_emitted() > 100; }));
  EXPECT_EQ(server.ask(post(kChatPath, chat_body(R"("max_tokens":50)"))).status, 200);
  ASSERT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.live() == 0; }));
  std::string metrics;
  for (int i = 0; i < 2000; ++i) {
    metrics = server.ask(get("/metrics")).body;
    if (metrics.find("http_slow_readers_total{model_name=\"test-model\"} 1") != std::string::npos) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_NE(metrics.find("http_slow_readers_total{model_name=\"test-model\"} 1"), std::string::npos);
}

TEST(Connection, PingsInASilentStream) {
  ServerOptions options = test::test_options();
  options.limits.ping_interval = 20 * kNanosPerMilli;
  RunningServer server(say("Hello"), options);
  server.backend().hold(true);
  HttpClient client(server.port());
  ASSERT_TRUE(client.send(post(kChatPath, chat_body(R"("stream":true)"))));
  ASSERT_TRUE(client.receive_until(": ping\n\n"));
  server.backend().hold(false);
  const auto answer = client.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(test::events(answer->body).back(), "[DONE]");
  // For clients that lose the line ends of a ping.
  EXPECT_NE(answer->body.find(": ping\n\n:\n\ndata: "), std::string::npos) << answer->body;
  EXPECT_EQ(answer->body.find("}\n\n:\n\n"), std::string::npos) << "only behind a ping";
}

TEST(Connection, AnExceptionIsOneFailedRequest) {
  RunningServer server(say("Hello"));
  const HttpAnswer answer =
      server.ask(post(kChatPath, R"({"messages":[{"role":"user","content":"explode"}]})"));
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(json::parse(answer.body)["error"]["type"], "server_error");
  EXPECT_EQ(server.ask(post(kChatPath, chat_body())).status, 200);
}

TEST(Connection, TooManyConnections) {
  ServerOptions options = test::test_options();
  options.limits.max_connections = 2;
  options.limits.max_connections_per_address = 2;
  options.limits.linger_timeout = 50 * kNanosPerMilli;
  RunningServer server(say("Hello"), options);
  server.backend().hold(true);
  // A connection with a request does not make way.
  HttpClient a(server.port()), b(server.port());
  ASSERT_TRUE(a.send(post(kChatPath, chat_body())) && b.send(post(kChatPath, chat_body())));
  ASSERT_TRUE(server.backend().wait_for([](const FakeBackend& backend) { return backend.live() == 2; }));
  HttpClient c(server.port());
  EXPECT_EQ(c.receive().value_or(HttpAnswer{}).status, 503);
  server.backend().hold(false);
  EXPECT_EQ(a.receive().value_or(HttpAnswer{}).status, 200);
  EXPECT_EQ(b.receive().value_or(HttpAnswer{}).status, 200);
  // Both wait for a request now, or will at once, and one of them makes way.
  int status = 0;
  for (int i = 0; i < 500 && status != 200; ++i) status = server.ask(get("/health")).status;
  EXPECT_EQ(status, 200);
  EXPECT_TRUE(a.closed_within(200) || b.closed_within(5000));
}

TEST(Connection, ManyStreamsAtOnce) {
  RunningServer server(test::repeat("abc"));
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 64; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server.port()));
    ASSERT_TRUE(clients.back()->send(post(
        "/v1/completions", R"({"prompt":"x","stream":true,"max_tokens":)" + std::to_string(30 + i) + "}")));
  }
  for (int i = 0; i < 64; ++i) {
    const auto answer = clients[static_cast<size_t>(i)]->receive();
    ASSERT_TRUE(answer);
    std::string text;
    const std::vector<std::string> got = test::events(answer->body);
    for (size_t e = 0; e + 1 < got.size(); ++e) {
      text += json::parse(got[e])["choices"][0]["text"].get<std::string>();
    }
    std::string expected;
    for (int t = 0; t < 30 + i; ++t) expected += "abc"[t % 3];
    EXPECT_EQ(text, expected);
  }
}

TEST(Connection, RandomBytesNeverStopTheServer) {
  RunningServer server(say("Hello"));
  Random random(7);
  const std::string good = post(kChatPath, chat_body(R"("stream":true)"));
  for (int i = 0; i < 150; ++i) {
    HttpClient client(server.port());
    std::string bytes = good;
    const uint64_t flips = 1 + random.below(4);
    for (uint64_t f = 0; f < flips; ++f) bytes[random.below(bytes.size())] = static_cast<char>(random.bits());
    client.send(bytes.substr(0, 1 + random.below(bytes.size())));
    if (i % 3 == 0) client.shutdown_send();
    if (i % 10 == 0) client.closed_within(20);
  }
  EXPECT_EQ(server.ask(get("/health")).status, 200);
  EXPECT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.live() == 0; }));
}

}  // namespace
}  // namespace kvasir
