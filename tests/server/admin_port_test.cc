// The operators' port: what it has, and that the public one cannot starve it.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "server/running_server.h"

namespace kvasir::test {
namespace {

ServerOptions with_admin_port() {
  ServerOptions options = test_options();
  options.admin_port = 0;
  return options;
}

HttpAnswer ask_admin(RunningServer& server, const std::string& request) {
  HttpClient client(server->admin_port());
  EXPECT_TRUE(client.send(request));
  return client.receive().value_or(HttpAnswer{});
}

TEST(AdminPort, HasWhatNeedsNoKeyAndNothingElse) {
  ServerOptions options = with_admin_port();
  options.api_keys = {"secret"};
  RunningServer server(say("x"), options);
  EXPECT_NE(server->admin_port(), server.port());
  EXPECT_EQ(server->admin_url(), "http://127.0.0.1:" + std::to_string(server->admin_port()));
  EXPECT_EQ(ask_admin(server, get("/health")).status, 200);
  EXPECT_NE(ask_admin(server, get("/metrics")).body.find("http_requests_total"), std::string::npos);
  EXPECT_EQ(ask_admin(server, post("/v1/completions", "{}", "Authorization: Bearer secret\r\n")).status, 404);
  EXPECT_EQ(ask_admin(server, get("/v1/models")).status, 404);
  // What the ports share, and what each has for itself.
  EXPECT_EQ(server.ask(get("/health")).status, 200);
  EXPECT_EQ(server.ask(get("/metrics")).status, 404);
  EXPECT_EQ(server.ask(post("/admin/drain", "")).status, 404);
  EXPECT_EQ(ask_admin(server, get("/admin/drain")).status, 405);
}

TEST(AdminPort, EachPortDescribesItself) {
  RunningServer server(say("x"), with_admin_port());
  const auto has = [](const HttpAnswer& answer, const std::string& path) {
    EXPECT_EQ(answer.status, 200);
    return answer.body.find('"' + path + '"') != std::string::npos;
  };
  for (int i = 0; i < 2; ++i) {
    const HttpAnswer at_public = server.ask(get("/openapi.json"));
    EXPECT_FALSE(has(at_public, "/metrics"));
    EXPECT_TRUE(has(at_public, "/v1/chat/completions"));
    const HttpAnswer at_admin = ask_admin(server, get("/openapi.json"));
    EXPECT_TRUE(has(at_admin, "/metrics"));
    EXPECT_FALSE(has(at_admin, "/v1/chat/completions"));
  }
  EXPECT_TRUE(has(RunningServer(say("x")).ask(get("/openapi.json")), "/metrics"));
}

TEST(AdminPort, MetricsMayBeOnBothPortsOrOnNone) {
  ServerOptions options = with_admin_port();
  options.public_metrics = true;
  EXPECT_EQ(RunningServer(say("x"), options).ask(get("/metrics")).status, 200);
  options = test_options();
  options.public_metrics = false;
  RunningServer without(say("x"), options);
  EXPECT_EQ(without.ask(get("/metrics")).status, 404);
  EXPECT_EQ(without->admin_port(), 0);
  EXPECT_EQ(without->admin_url(), "");
}

TEST(AdminPort, Drains) {
  RunningServer server(say("Hello"), with_admin_port());
  server.backend().hold(true);
  HttpClient running(server.port());
  ASSERT_TRUE(running.send(post(kChatPath, chat_body())));
  ASSERT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.live() == 1; }));
  const HttpAnswer drain = ask_admin(server, post("/admin/drain", ""));
  EXPECT_EQ(drain.status, 200);
  EXPECT_EQ(drain.body, R"({"running_requests":1,"status":"draining"})");
  EXPECT_EQ(ask_admin(server, get("/health")).status, 503);
  EXPECT_EQ(server.ask(post(kChatPath, chat_body())).status, 503);
  server.backend().hold(false);
  EXPECT_EQ(running.receive().value_or(HttpAnswer{}).status, 200);
  EXPECT_TRUE(server->wait_idle(10 * kNanosPerSecond));
  EXPECT_EQ(ask_admin(server, post("/admin/drain", "")).body,
            R"({"running_requests":0,"status":"draining"})");
}

TEST(AdminPort, AnswersWhileThePublicPortIsFull) {
  ServerOptions options = with_admin_port();
  options.limits.max_connections = 2;
  options.limits.max_connections_per_address = 2;
  RunningServer server(say("x"), options);
  server.backend().hold(true);
  std::vector<std::unique_ptr<HttpClient>> busy;
  for (int i = 0; i < 2; ++i) {
    busy.push_back(std::make_unique<HttpClient>(server.port()));
    ASSERT_TRUE(busy.back()->send(post(kChatPath, chat_body())));
  }
  ASSERT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.live() == 2; }));
  EXPECT_EQ(server.ask(get("/health")).status, 503);
  EXPECT_EQ(ask_admin(server, get("/health")).status, 200);
}

TEST(AdminPort, APortThatIsTakenIsSaid) {
  RunningServer first(say("x"));
  ServerOptions options = test_options();
  options.admin_port = first.port();
  const auto second = Server::start(options);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(std::to_string(first.port())), std::string::npos);
}

// Probes and scrapers call a pod by its address.
TEST(AdminPort, ProbesReachItWhateverNamesAreAllowed) {
  ServerOptions options = with_admin_port();
  options.api_keys = {"secret"};
  options.browsers.allowed_hosts = {"chat.example"};
  RunningServer server(say("x"), options);
  for (const char* path : {"/readyz", "/livez", "/metrics"}) {
    const std::string request = fmt::format("GET {} HTTP/1.1\r\nHost: 10.1.2.3:8001\r\n\r\n", path);
    EXPECT_EQ(ask_admin(server, request).status, 200) << path;
  }
  EXPECT_EQ(ask_admin(server, "GET /readyz HTTP/1.1\r\nHost: evil.example\r\n\r\n").status, 403);
}

TEST(AdminPort, PagesCannotMakeItDrain) {
  RunningServer server(say("x"), with_admin_port());
  EXPECT_EQ(ask_admin(server, post("/admin/drain", "", "Origin: http://evil.example\r\n")).status, 403);
  EXPECT_EQ(ask_admin(server, "POST /admin/drain HTTP/1.1\r\nHost: evil.example\r\n\r\n").status, 403);
  EXPECT_EQ(server.ask(get("/health")).status, 200);
}

}  // namespace
}  // namespace kvasir::test
