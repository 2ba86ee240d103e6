// The endpoints of the cache map: the stream of a server, and the files of `kvasir view`.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>

#include "engine/live_map.h"
#include "server/running_server.h"
#include "support/temp_file.h"

namespace kvasir::test {
namespace {

using nlohmann::json;

// Shows a frame whenever one is wanted, as an engine at rest does.
class Shower {
 public:
  explicit Shower(LiveMap& map) : map_(map) {
    MapShape shape;
    shape.geometry = {16, 4, 1, 8};
    map_.begin(shape);
    thread_ = std::thread([this] {
      while (!stop_) {
        if (map_.watched() && map_.wants_frame()) map_.show({});
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  ~Shower() {
    stop_ = true;
    thread_.join();
  }

 private:
  LiveMap& map_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(CacheStream, BeginsWithAWholeMapAndEndsWhenTheServerDrains) {
  LiveMap map({"serve", "m", "auto"});
  const Shower shower(map);
  RunningServer server(say("x"), test_options(), /*ready=*/false);
  EXPECT_EQ(server.ask(get("/cache/stream")).status, 503);
  ModelService service = server.service();
  service.map = &map;
  server->serve(service);
  EXPECT_EQ(server.ask("HEAD /cache/stream HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
  HttpClient client(server.port());
  ASSERT_TRUE(client.send(get("/cache/stream")));
  while (map.viewers() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  server->drain();
  const auto answer = client.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_TRUE(
      answer->body.starts_with(R"(data: {"kvasir_map":1,"source":"serve","model":"m","policy":"auto",)"));
  EXPECT_NE(answer->body.find(R"("whole":true)"), std::string::npos);
  EXPECT_EQ(map.viewers(), 0u);
  EXPECT_FALSE(map.watched());
}

TEST(CacheStream, AClientThatLeavesIsForgotten) {
  LiveMap map({"serve", "m", "auto"});
  const Shower shower(map);
  RunningServer server(say("x"), test_options(), /*ready=*/false);
  ModelService service = server.service();
  service.map = &map;
  server->serve(service);
  {
    HttpClient client(server.port());
    ASSERT_TRUE(client.send(get("/cache/stream")));
    while (map.viewers() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  while (map.viewers() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(server.ask(get("/v1/models")).status, 200);
}

TEST(CacheStream, WithKeysItNeedsOneThatMaySeeIt) {
  LiveMap map({"serve", "m", "auto"});
  ServerOptions options = test_options();
  ApiKey key = plain_key("alice", "of-alice");
  key.may_see_cache = false;
  options.named_keys = {key};
  RunningServer server(say("x"), options, /*ready=*/false);
  ModelService service = server.service();
  service.map = &map;
  server->serve(service);
  EXPECT_EQ(server.ask(get("/cache/stream")).status, 401);
  const HttpAnswer refused =
      server.ask("GET /cache/stream HTTP/1.1\r\nHost: localhost\r\nx-api-key: of-alice\r\n\r\n");
  EXPECT_EQ(refused.status, 403);
  EXPECT_NE(refused.body.find("'cache_map'"), std::string::npos);
  EXPECT_EQ(server.ask(get("/cache/source")).body, R"({"live":true,"records":[]})");
}

TEST(CacheRecords, AViewerHasThePageAndTheLinesOfTheMapAndNothingElse) {
  const std::string log = R"({"kvasir_plan_log":8,"policy":"auto"}
{"kvasir_map":1,"groups":1}
{"view":{},"plan":{"f":1}}
{"f":1,"whole":true}
)";
  const TempFile file(std::as_bytes(std::span(log)));
  ServerOptions options = test_options();
  options.records = {{"run.jsonl", file.path()}};
  RunningServer server(say("x"), options, /*ready=*/false);
  EXPECT_EQ(json::parse(server.ask(get("/cache/source")).body),
            (json{{"live", false}, {"records", {"run.jsonl"}}}));
  EXPECT_EQ(server.ask(get("/cache/records/0")).body,
            "{\"kvasir_map\":1,\"groups\":1}\n{\"f\":1,\"whole\":true}\n");
  EXPECT_EQ(server.ask(get("/cache")).status, 200);
  EXPECT_EQ(server.ask(get("/assets/cache/main.js")).status, 200);
  for (const char* path : {"/", "/cache/stream", "/v1/models", "/metrics", "/cache/records/1",
                           "/cache/records/x", "/cache/records/-1"}) {
    EXPECT_EQ(server.ask(get(path)).status, 404) << path;
  }
}

}  // namespace
}  // namespace kvasir::test
