// Pages that may and may not use a server.
#include "server/browser_rules.h"

#include <gtest/gtest.h>

#include "server/running_server.h"

namespace kvasir::test {
namespace {

std::string with_host(const std::string& host, const std::string& more = "") {
  return "GET /health HTTP/1.1\r\nHost: " + host + "\r\n" + more + "\r\n";
}

// As a page sends it without asking first.
std::string simple_post(const std::string& origin) {
  const std::string body = chat_body();
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost:8000\r\nOrigin: {}\r\nContent-Type: text/plain\r\n"
      "Content-Length: {}\r\n\r\n{}",
      kChatPath, origin, body.size(), body);
}

std::string preflight_of(const std::string& origin, const std::string& path = kChatPath) {
  return fmt::format(
      "OPTIONS {} HTTP/1.1\r\nHost: localhost\r\nOrigin: {}\r\nAccess-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization, content-type, x-stainless-os\r\n\r\n",
      path, origin);
}

TEST(BrowserRules, AKeylessServerOnLoopbackKnowsItsNames) {
  RunningServer server(say("x"));
  for (const char* own :
       {"localhost", "LocalHost:1", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "10.0.0.1", "[::2]"}) {
    EXPECT_EQ(server.ask(with_host(own)).status, 200) << own;
  }
  for (const char* foreign :
       {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "127.evil.example:8000"}) {
    const HttpAnswer answer = server.ask(with_host(foreign));
    EXPECT_EQ(answer.status, 403) << foreign;
    EXPECT_NE(answer.body.find("--allowed-hosts"), std::string::npos) << answer.body;
  }
  EXPECT_EQ(server.ask("GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 403);
}

TEST(BrowserRules, FurtherNamesAndAnyName) {
  ServerOptions options = test_options();
  options.browsers.allowed_hosts = {"Chat.example"};
  RunningServer named(say("x"), options);
  EXPECT_EQ(named.ask(with_host("chat.example:80")).status, 200);
  EXPECT_EQ(named.ask(with_host("localhost")).status, 200);
  EXPECT_EQ(named.ask(with_host("evil.example")).status, 403);
  options.browsers.allowed_hosts = {"*"};
  EXPECT_EQ(RunningServer(say("x"), options).ask(with_host("evil.example")).status, 200);
  // A key keeps pages out, so names are only checked if they are given.
  options = test_options();
  options.api_keys = {"k"};
  EXPECT_EQ(RunningServer(say("x"), options).ask(with_host("any.example")).status, 200);
  options.browsers.allowed_hosts = {"chat.example"};
  EXPECT_EQ(RunningServer(say("x"), options).ask(with_host("any.example")).status, 403);
  EXPECT_EQ(RunningServer(say("x"), options).ask(with_host("10.1.2.3:8000")).status, 200) << "no name";
}

// As in a container, where a page that is rebound to the published port looks like any other client.
TEST(BrowserRules, AKeylessServerThatOthersReachKnowsItsNamesToo) {
  ServerOptions options = test_options();
  options.host = "0.0.0.0";
  RunningServer server(say("x"), options);
  for (const char* own : {"localhost:8000", "127.0.0.1:8000", "192.168.1.5:8000", "[fd00::1]:8000"}) {
    EXPECT_EQ(server.ask(with_host(own)).status, 200) << own;
  }
  const std::string body = chat_body();
  EXPECT_EQ(server
                .ask(fmt::format("POST {} HTTP/1.1\r\nHost: evil.example:8000\r\nOrigin: "
                                 "http://evil.example:8000\r\nContent-Length: {}\r\n\r\n{}",
                                 kChatPath, body.size(), body))
                .status,
            403);
  EXPECT_TRUE(server.backend().submitted().empty());
  options.browsers.allowed_hosts = {"gpu.example"};
  EXPECT_EQ(RunningServer(say("x"), options).ask(with_host("gpu.example:8000")).status, 200);
}

TEST(BrowserRules, AForeignPageSpendsNothing) {
  RunningServer server(say("x"));
  for (const char* foreign :
       {"http://evil.example", "null", "http://localhost:3000", "https://localhost:8000x",
        "http://localhost.evil.example:8000", "localhost:8000"}) {
    const HttpAnswer answer = server.ask(simple_post(foreign));
    EXPECT_EQ(answer.status, 403) << foreign;
    EXPECT_EQ(answer.headers.at("connection"), "close") << "the body is not read";
    EXPECT_EQ(answer.headers.count("access-control-allow-origin"), 0u);
  }
  EXPECT_TRUE(server.backend().submitted().empty());
  EXPECT_EQ(server.ask(simple_post("http://localhost:8000")).status, 200) << "its own page";
  EXPECT_EQ(server.ask(post(kChatPath, chat_body())).status, 200) << "no page";
  const HttpAnswer preflight = server.ask(preflight_of("http://evil.example"));
  EXPECT_EQ(preflight.status, 405);
  EXPECT_EQ(preflight.headers.count("access-control-allow-origin"), 0u);
}

TEST(BrowserRules, OriginsThatAreAllowed) {
  ServerOptions options = test_options();
  options.browsers.cors_origins = {"https://chat.example", "http://localhost:3000"};
  RunningServer server(say("x"), options);
  const HttpAnswer answer = server.ask(simple_post("https://chat.example"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "https://chat.example");
  EXPECT_EQ(answer.headers.at("vary"), "Origin");
  EXPECT_NE(answer.headers.at("access-control-expose-headers").find("X-Request-Id"), std::string::npos);
  const HttpAnswer preflight = server.ask(preflight_of("https://chat.example"));
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.count("content-length"), 0u);
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "https://chat.example");
  EXPECT_EQ(preflight.headers.at("access-control-allow-headers"),
            "authorization, content-type, x-stainless-os");
  EXPECT_NE(preflight.headers.at("access-control-allow-methods").find("POST"), std::string::npos);
  EXPECT_EQ(server.ask(simple_post("http://chat.example")).status, 403) << "another scheme";
  EXPECT_EQ(server.ask(simple_post("https://chat.example.evil.example")).status, 403);
  const HttpAnswer none = server.ask(get("/health"));
  EXPECT_EQ(none.headers.at("vary"), "Origin") << "for caches, whichever origin asked";
  EXPECT_EQ(none.headers.count("access-control-allow-origin"), 0u);
  // An event stream has them, too.
  HttpClient client(server.port());
  ASSERT_TRUE(
      client.send(post(kChatPath, chat_body(R"("stream":true)"), "Origin: http://localhost:3000\r\n")));
  EXPECT_EQ(client.receive().value_or(HttpAnswer{}).headers.at("access-control-allow-origin"),
            "http://localhost:3000");
}

TEST(BrowserRules, AnyOriginAndPreflightsWithoutAKey) {
  ServerOptions options = test_options();
  options.browsers.cors_origins = {"*"};
  options.api_keys = {"secret"};
  RunningServer server(say("x"), options);
  EXPECT_EQ(server.ask(preflight_of("https://a.example")).status, 204) << "browsers send no key with it";
  EXPECT_EQ(server.ask(preflight_of("https://a.example", "/nothing")).status, 204);
  const HttpAnswer refused = server.ask(simple_post("https://a.example"));
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("access-control-allow-origin"), "*") << "so that the page sees why";
  EXPECT_EQ(refused.headers.count("vary"), 0u);
}

TEST(BrowserRules, WhatIsNoOriginAndNoNameIsSaid) {
  const auto problem = [](std::vector<std::string> origins, std::vector<std::string> hosts) {
    const Status status = check_browser_options({std::move(origins), std::move(hosts)});
    return status.ok() ? std::string() : status.message();
  };
  EXPECT_EQ(problem({"https://a.example:8443", "*", "null"}, {"a.example", "*", "[::1]", "10.0.0.1"}), "");
  for (const char* bad : {"a.example", "https://", "https://a.example/", "://a", "", "https://a b"}) {
    EXPECT_NE(problem({bad}, {}).find("--cors-origins"), std::string::npos) << bad;
  }
  for (const char* bad : {"a.example:80", "", "[::1]:80"}) {
    EXPECT_NE(problem({}, {bad}).find("--allowed-hosts"), std::string::npos) << bad;
  }
  ServerOptions options = test_options();
  options.browsers.cors_origins = {"a"};
  EXPECT_EQ(Server::start(options).status().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvasir::test
