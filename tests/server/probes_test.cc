// What orchestrators ask: is the process alive, and should it get requests.
#include <gtest/gtest.h>

#include <string>

#include "server/running_server.h"

namespace kvasir::test {
namespace {

std::string body_of(RunningServer& server, const char* path) {
  return server.ask(get(path)).body;
}

TEST(Probes, AServerThatLoadsIsAliveAndNotReady) {
  RunningServer server(say("x"), test_options(), /*ready=*/false);
  EXPECT_EQ(server.ask(get("/livez")).status, 200);
  const HttpAnswer ready = server.ask(get("/readyz"));
  EXPECT_EQ(ready.status, 503);
  EXPECT_NE(ready.body.find("still loading"), std::string::npos);
  server->serve(server.service());
  EXPECT_EQ(server.ask(get("/readyz")).status, 200);
  EXPECT_EQ(server.ask(get("/livez")).status, 200);
}

TEST(Probes, TheyNeedNoKeyAndAreOnBothPorts) {
  ServerOptions options = test_options();
  options.api_keys = {"secret"};
  options.admin_port = 0;
  RunningServer server(say("x"), options);
  for (const char* path : {"/livez", "/readyz"}) {
    EXPECT_EQ(server.ask(get(path)).status, 200);
    EXPECT_EQ(server.ask("HEAD " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
    HttpClient admin(server->admin_port());
    ASSERT_TRUE(admin.send(get(path)));
    EXPECT_EQ(admin.receive().value_or(HttpAnswer{}).status, 200);
    EXPECT_NE(body_of(server, "/openapi.json").find('"' + std::string(path) + '"'), std::string::npos);
  }
}

TEST(Probes, AnEngineWithoutASignOfLifeIsNotAlive) {
  ServerOptions options = test_options();
  options.liveness_timeout = 5 * kNanosPerSecond;
  RunningServer server(say("x"), options);
  server.backend().set_silent_for(5 * kNanosPerSecond);
  EXPECT_EQ(server.ask(get("/livez")).status, 200);
  server.backend().set_silent_for(17 * kNanosPerSecond);
  const HttpAnswer dead = server.ask(get("/livez"));
  EXPECT_EQ(dead.status, 503);
  EXPECT_NE(dead.body.find("17 s"), std::string::npos) << dead.body;
  server.backend().set_silent_for(0);
  EXPECT_EQ(server.ask(get("/livez")).status, 200);
}

TEST(Probes, TheReasonWhyItIsNotReadyIsSaid) {
  TestService model(say("x"));
  auto server = Server::start(test_options()).value();
  ModelService service = model.service();
  std::atomic<bool> member{false};
  service.unready = [&] { return member ? "" : "this instance is alone"; };
  server->serve(service);
  const auto ask = [&](const char* path) {
    HttpClient client(server->port());
    EXPECT_TRUE(client.send(get(path)));
    return client.receive().value_or(HttpAnswer{});
  };
  const HttpAnswer alone = ask("/readyz");
  EXPECT_EQ(alone.status, 503);
  EXPECT_NE(alone.body.find("this instance is alone"), std::string::npos);
  EXPECT_EQ(ask("/health").status, 200) << "it serves all the same";
  member = true;
  EXPECT_EQ(ask("/readyz").status, 200);
}

TEST(Probes, AFailureThatStaysIsSaidByEachAndByRequests) {
  TestService model(say("x"));
  auto server = Server::start(test_options()).value();
  ModelService service = model.service();
  std::atomic<bool> lost{false};
  service.failure = [&] { return lost ? "the device is lost" : ""; };
  server->serve(service);
  const auto ask = [&](const std::string& request) {
    HttpClient client(server->port());
    EXPECT_TRUE(client.send(request));
    return client.receive().value_or(HttpAnswer{});
  };
  const std::vector<std::string> requests = {get("/livez"), get("/readyz"), get("/health"),
                                             post(kChatPath, chat_body())};
  for (const std::string& request : requests) EXPECT_EQ(ask(request).status, 200);
  lost = true;
  for (const std::string& request : requests) {
    const HttpAnswer answer = ask(request);
    EXPECT_EQ(answer.status, 503) << request;
    EXPECT_NE(answer.body.find("the device is lost"), std::string::npos) << answer.body;
  }
  EXPECT_EQ(ask(get("/metrics")).status, 200);
}

TEST(Probes, ThatTheEndIsNearIsSaidBeforeRequestsAreRefused) {
  RunningServer server(say("Hello"));
  HttpClient client(server.port());
  ASSERT_TRUE(client.send(post(kChatPath, chat_body())));
  EXPECT_EQ(client.receive().value_or(HttpAnswer{}).headers["connection"], "keep-alive");
  server->announce_end();
  const HttpAnswer ready = server.ask(get("/readyz"));
  EXPECT_EQ(ready.status, 503);
  EXPECT_NE(ready.body.find("shut down"), std::string::npos);
  EXPECT_EQ(server.ask(get("/health")).status, 200);
  EXPECT_EQ(server.ask(get("/livez")).status, 200);
  // It is still served, on a connection that then closes, so that the client looks for another server.
  ASSERT_TRUE(client.send(post(kChatPath, chat_body())));
  const HttpAnswer served = client.receive().value_or(HttpAnswer{});
  EXPECT_EQ(served.status, 200);
  EXPECT_EQ(served.headers.at("connection"), "close");
  EXPECT_TRUE(client.closed_within(5000));

  server->drain();
  const HttpAnswer refused = server.ask(post(kChatPath, chat_body()));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_EQ(server.ask(get("/readyz")).status, 503);
  EXPECT_EQ(server.ask(get("/livez")).status, 200) << "a restart would only cut off what still runs";
}

}  // namespace
}  // namespace kvasir::test
