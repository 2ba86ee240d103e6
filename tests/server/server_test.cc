// Endpoints and the server's states: loading, ready, draining, stopped.
#include "server/server.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <nlohmann/json.hpp>

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
using test::repeat;
using test::RunningServer;
using test::say;
using test::test_options;

json error_of(const HttpAnswer& answer) {
  const json body = json::parse(answer.body);
  const json error = body.at("error");
  for (const char* field : {"message", "type", "param", "code"}) EXPECT_TRUE(error.contains(field)) << body;
  return error;
}

TEST(Server, Models) {
  RunningServer server(say("x"));
  const json list = json::parse(server.ask(get("/v1/models")).body);
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(list["data"][0]["id"], "test-model");
  EXPECT_EQ(list["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(list["data"][0]["root"], "test-model");
  EXPECT_EQ(json::parse(server.ask(get("/v1/models/alias")).body)["id"], "alias");
  const HttpAnswer missing = server.ask(get("/v1/models/other"));
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(error_of(missing)["code"], "model_not_found");
  EXPECT_EQ(json::parse(server.ask(get("/version")).body)["version"], "1.2.3");
  for (const char* path : {"/server_info", "/get_server_info"}) {
    const json info = json::parse(server.ask(get(path)).body);
    EXPECT_EQ(info["served_model_name"], "test-model");
    EXPECT_EQ(info["max_model_len"], 4096);
    EXPECT_EQ(info["kv_block_size"], 64);
  }
}

TEST(Server, PathsAndMethods) {
  RunningServer server(say("x"));
  EXPECT_EQ(server.ask(get("/nothing")).status, 404);
  EXPECT_EQ(error_of(server.ask(get("/v1/nothing")))["code"], "not_found");
  const HttpAnswer wrong = server.ask(get(kChatPath));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(server.ask(post("/v1/audio/speech", "{}")).status, 501);
  EXPECT_EQ(server.ask("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
}

TEST(Server, APageThatLoadsNothingFromElsewhere) {
  RunningServer server(say("x"));
  const HttpAnswer page = server.ask(get("/docs"));
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.body.find("://"), std::string::npos);
  // Whatever the page links to is there.
  for (const char* file : {"docs/page.css", "docs/page.js", "openapi.json"}) {
    EXPECT_NE(page.body.find(fmt::format("=\"{}\"", file)), std::string::npos) << file;
    EXPECT_EQ(server.ask(get("/" + std::string(file))).status, 200) << file;
  }
  for (const char* path : {"/docs", "/docs/page.css", "/docs/page.js"}) {
    const HttpAnswer answer = server.ask(get(path));
    EXPECT_TRUE(answer.headers.at("content-security-policy").starts_with("default-src 'none'; ")) << path;
    EXPECT_EQ(answer.headers.at("x-content-type-options"), "nosniff");
    EXPECT_EQ(answer.body.find("innerHTML"), std::string::npos);
  }
  EXPECT_EQ(server.ask(get("/docs/other")).status, 404);
  EXPECT_FALSE(server.ask(get("/version")).headers.contains("content-security-policy"));
}

TEST(Server, UnknownModelAndNamedModel) {
  RunningServer server(say("x"));
  const HttpAnswer unknown = server.ask(post(kChatPath, chat_body(R"("model":"gpt-9")")));
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(error_of(unknown)["param"], "model");
  EXPECT_EQ(json::parse(server.ask(post(kChatPath, chat_body(R"("model":"alias")"))).body)["model"], "alias");
  EXPECT_EQ(json::parse(server.ask(post(kChatPath, chat_body())).body)["model"], "test-model");
}

TEST(Server, ChatAnswer) {
  RunningServer server(say("Hello there"));
  const HttpAnswer answer = server.ask(post(kChatPath, chat_body()));
  EXPECT_EQ(answer.headers.at("content-type"), "application/json");
  const json body = json::parse(answer.body);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(body["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hello there");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(body["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(body["usage"]["prompt_tokens"], 19);      // "user: hi|assistant:"
  EXPECT_EQ(body["usage"]["completion_tokens"], 12);  // the token that ends it is one of them
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 9);
}

TEST(Server, SeveralPrompts) {
  RunningServer server([](const GenerationRequest& r, size_t) { return r.prompt[0]; });
  const json body =
      json::parse(server.ask(post("/v1/completions", R"({"prompt":["a","b","c"],"max_tokens":2})")).body);
  ASSERT_EQ(body["choices"].size(), 3u);
  EXPECT_EQ(body["choices"][2]["text"], "cc");
  EXPECT_EQ(body["choices"][2]["index"], 2);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
}

TEST(Server, StopStringsAreNeverSeen) {
  RunningServer server(say("one two three"));
  for (const bool stream : {false, true}) {
    const HttpAnswer answer = server.ask(
        post("/v1/completions",
             fmt::format(R"({{"prompt":"x","stop":["wo t"],"stream":{},"max_tokens":100}})", stream)));
    std::string text;
    if (stream) {
      for (const std::string& event : test::events(answer.body)) {
        if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"].get<std::string>();
      }
    } else {
      text = json::parse(answer.body)["choices"][0]["text"];
    }
    EXPECT_EQ(text, "one t");
    EXPECT_NE(answer.body.find(R"("finish_reason":"stop")"), std::string::npos);
  }
  // Counted as stops, not as cancelled requests.
  ASSERT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.live() == 0; }));
  const std::string metrics = server.ask(get("/metrics")).body;
  EXPECT_NE(metrics.find("finished_reason=\"stop\"} 2"), std::string::npos);
  EXPECT_NE(metrics.find("finished_reason=\"abort\"} 0"), std::string::npos);
}

TEST(Server, ApiKeys) {
  ServerOptions options = test_options();
  options.api_keys = {"secret"};
  RunningServer server(say("x"), options);
  const HttpAnswer refused = server.ask(post(kChatPath, chat_body()));
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(error_of(refused)["code"], "invalid_api_key");
  EXPECT_EQ(server.ask(get("/v1/models", "Authorization: Bearer wrong\r\n")).status, 401);
  EXPECT_EQ(server.ask(get("/v1/nothing")).status, 401);
  EXPECT_EQ(server.ask(get("/v1/models", "Authorization: Bearer secret\r\n")).status, 200);
  EXPECT_EQ(server.ask(post(kChatPath, chat_body(), "Authorization: Bearer secret\r\n")).status, 200);
  EXPECT_EQ(server.ask(get("/health")).status, 200);
  EXPECT_EQ(server.ask(get("/metrics")).status, 200);
}

TEST(Server, OverloadIsRefusedBeforeTheStream) {
  RunningServer server(say("x"));
  server.backend().refuse(error(ErrorCode::kExhausted, "the queue is full"));
  const HttpAnswer answer = server.ask(post(kChatPath, chat_body(R"("stream":true)")));
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.headers.at("retry-after"), "1");
  EXPECT_EQ(error_of(answer)["message"], "the queue is full");
  EXPECT_NE(server.ask(get("/metrics")).body.find("requests_refused_total{model_name=\"test-model\"} 1"),
            std::string::npos);
  server.backend().refuse(Status());
  EXPECT_EQ(server.ask(post(kChatPath, chat_body())).status, 200);
  server.backend().refuse(error(ErrorCode::kInvalidArgument, "it can never fit"));
  EXPECT_EQ(server.ask(post(kChatPath, chat_body(R"("stream":true)"))).status, 400);
}

TEST(Server, LoadingThenReady) {
  RunningServer server(say("x"), test_options(), /*ready=*/false);
  const HttpAnswer health = server.ask(get("/health"));
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.headers.count("retry-after"), 1u);
  EXPECT_EQ(error_of(server.ask(post(kChatPath, chat_body())))["code"], "loading");
  EXPECT_EQ(server.ask(get("/metrics")).status, 200);
  server->serve(server.service());
  int status = 0;
  for (int i = 0; i < 1000 && status != 200; ++i) status = server.ask(get("/health")).status;
  EXPECT_EQ(status, 200);
}

TEST(Server, DrainingLetsRunningRequestsFinish) {
  RunningServer server(say("Hello"));
  server.backend().hold(true);
  HttpClient running(server.port());
  ASSERT_TRUE(running.send(post(kChatPath, chat_body(R"("stream":true)"))));
  ASSERT_TRUE(running.receive_until("text/event-stream"));
  server->drain();
  EXPECT_FALSE(server->wait_idle(20 * kNanosPerMilli));
  EXPECT_EQ(server.ask(get("/health")).status, 503);
  const HttpAnswer refused = server.ask(post(kChatPath, chat_body()));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  server.backend().hold(false);
  EXPECT_TRUE(server->wait_idle(10 * kNanosPerSecond));
  server->stop(5 * kNanosPerSecond);
  const auto answer = running.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(test::events(answer->body).back(), "[DONE]");
  EXPECT_NE(answer->body.find(R"("finish_reason":"stop")"), std::string::npos);
}

TEST(Server, WhatIsLeftAtTheEndIsToldSo) {
  RunningServer server(say("Hello"));
  server.backend().hold(true);
  HttpClient stream(server.port()), whole(server.port());
  ASSERT_TRUE(stream.send(post(kChatPath, chat_body(R"("stream":true)"))));
  ASSERT_TRUE(whole.send(post(kChatPath, chat_body())));
  ASSERT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.live() == 2; }));
  server->drain();
  EXPECT_FALSE(server->wait_idle(kNanosPerMilli));
  server.backend().end_all(FinishReason::kAbort, "");
  server->stop(5 * kNanosPerSecond);
  const auto cut = stream.receive();
  ASSERT_TRUE(cut);
  const std::vector<std::string> got = test::events(cut->body);
  ASSERT_GE(got.size(), 2u);
  EXPECT_TRUE(json::parse(got[got.size() - 2]).contains("error"));
  EXPECT_EQ(got.back(), "[DONE]");
  EXPECT_EQ(whole.receive().value_or(HttpAnswer{}).status, 503);
}

TEST(Server, StopCancelsWhatRuns) {
  RunningServer server(test::repeat("ab"));
  server.backend().set_round_time(kNanosPerMilli);
  HttpClient client(server.port());
  ASSERT_TRUE(client.send(post(kChatPath, chat_body(R"("stream":true)"))));
  ASSERT_TRUE(client.receive_until("\"a\""));
  HttpClient idle(server.port());
  server->stop(0);
  EXPECT_TRUE(idle.closed_within(5000));
  EXPECT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.live() == 0; }));
  EXPECT_EQ(server.backend().cancelled().size(), 1u);
  server->stop(0);
}

TEST(Server, PortsAndHosts) {
  RunningServer server(say("x"));
  EXPECT_EQ(server->url(), "http://127.0.0.1:" + std::to_string(server.port()));
  ServerOptions taken = test_options();
  taken.port = server.port();
  const auto second = Server::start(taken);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), ErrorCode::kIo);
  EXPECT_NE(second.status().message().find(std::to_string(server.port())), std::string::npos);
  ServerOptions nowhere = test_options();
  nowhere.host = "not a host";
  EXPECT_EQ(Server::start(nowhere).status().code(), ErrorCode::kInvalidArgument);
  ServerOptions elsewhere = test_options();
  elsewhere.host = "192.0.2.1";  // an address that no machine has
  EXPECT_EQ(Server::start(elsewhere).status().code(), ErrorCode::kIo);
}

// As a supervisor opens it: on the loopback interface, at a free port.
class ListeningSocket {
 public:
  ListeningSocket() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, any, size), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    EXPECT_EQ(getsockname(fd_, any, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~ListeningSocket() { close(fd_); }
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;
  int fd() const { return fd_; }
  uint16_t port() const { return port_; }

 private:
  const int fd_ = socket(AF_INET, SOCK_STREAM, 0);
  uint16_t port_ = 0;
};

// So a supervisor holds the port: clients wait while no server runs, and while it loads the model.
TEST(Server, TakesASocketThatListensAlready) {
  const ListeningSocket held;
  ServerOptions options = test_options();
  options.port = held.port();
  options.admin_port = 0;  // a socket of its own
  for (int run = 0; run < 2; ++run) {
    HttpClient early(options.port);
    ASSERT_TRUE(early.send(get("/health")));
    options.listening_fd = dup(held.fd());
    RunningServer server(say("x"), options, /*ready=*/false);
    EXPECT_EQ(server.port(), options.port);
    EXPECT_NE(server->admin_port(), options.port);
    HttpClient loading(server->admin_port());
    ASSERT_TRUE(loading.send(get("/health")));
    EXPECT_EQ(loading.receive()->status, 503);
    server->serve(server.service());
    const auto answer = early.receive();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->status, 200);
  }
}

// A server that will have a successor leaves it the clients that come while its last requests run.
TEST(Server, LeavesTheClientsOfAnOpenSocketToTheNextOne) {
  const ListeningSocket held;
  ServerOptions options = test_options();
  options.port = held.port();
  options.listening_fd = dup(held.fd());
  RunningServer first(repeat("ab"), options);
  first.backend().set_round_time(kNanosPerMilli);
  HttpClient streams(options.port);
  ASSERT_TRUE(streams.send(post(kChatPath, chat_body(R"("stream":true)"))));
  ASSERT_TRUE(streams.receive_until(R"("content":"b")"));
  first->drain();
  EXPECT_EQ(first.ask(get("/health")).status, 503) << "told to drain, and it does not end";
  first->announce_end();
  first->drain();
  EXPECT_FALSE(first->wait_idle(0));
  HttpClient waits(options.port);
  ASSERT_TRUE(waits.send(get("/health")));
  options.listening_fd = dup(held.fd());
  RunningServer second(say("x"), options);
  EXPECT_EQ(waits.receive().value_or(HttpAnswer{}).status, 200);
}

TEST(Server, ALongPromptDoesNotDelayAShortOne) {
  RunningServer server(say("x"));
  // Held up in the template, as a very long one would be.
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  ModelService service = server.service();
  service.render_chat = [released](const ApiRequest& request) {
    if (request.messages[0].content.size() > 1000) released.wait();
    return test::render_test_chat({});
  };
  RunningServer blocked(say("x"), test_options(), /*ready=*/false);
  blocked->serve(service);
  HttpClient slow(blocked.port());
  const std::string huge = std::string(100'000, 'a');
  ASSERT_TRUE(slow.send(post(kChatPath, R"({"messages":[{"role":"user","content":")" + huge + R"("}]})")));
  EXPECT_EQ(blocked.ask(post(kChatPath, chat_body())).status, 200);
  release.set_value();
  EXPECT_EQ(slow.receive().value_or(HttpAnswer{}).status, 200);
}

}  // namespace
}  // namespace kvasir
