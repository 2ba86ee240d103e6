// The endpoints of the cache map: the stream of a server, and the files of `kvasir view`.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "engine/live_map.h"
#include "server/running_server.h"
#include "support/temp_file.h"

namespace kvasir::test {
namespace {

using nlohmann::json;

MapShape small_shape() {
  MapShape shape;
  shape.geometry = {16, 4, 1, 8};
  return shape;
}

// Shows the frame whenever one is wanted, as an engine at rest does.
class Shower {
 public:
  explicit Shower(LiveMap& map, MapFrame frame = {}) : map_(map), frame_(std::move(frame)) {
    map_.begin(small_shape());
    thread_ = std::thread([this] {
      while (!stop_) {
        if (map_.watched() && map_.wants_frame()) {
          map_.show(frame_);
          ++shown_;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  ~Shower() {
    stop_ = true;
    thread_.join();
  }
  void wait_for_frames(int more) const {
    const int until = shown_ + more;
    while (shown_ < until) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  LiveMap& map_;
  const MapFrame frame_;
  std::atomic<int> shown_{0};
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

TEST(CacheStream, EndsWithTheDrainThoughTheEngineShowsNothingMore) {
  LiveMap map({"serve", "m", "auto"});
  map.begin(small_shape());
  RunningServer server(say("x"), test_options(), /*ready=*/false);
  ModelService service = server.service();
  service.map = &map;
  server->serve(service);
  HttpClient client(server.port());
  ASSERT_TRUE(client.send(get("/cache/stream")));
  while (map.viewers() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  server->drain();
  const auto answer = client.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->body, "");
  EXPECT_EQ(map.viewers(), 0u);
  EXPECT_TRUE(server->wait_idle(10 * kNanosPerSecond));
}

TEST(CacheStream, EndsWhenTheServerStopsWithoutADrain) {
  LiveMap map({"serve", "m", "auto"});
  const Shower shower(map);
  RunningServer server(say("x"), test_options(), /*ready=*/false);
  ModelService service = server.service();
  service.map = &map;
  server->serve(service);
  HttpClient client(server.port());
  ASSERT_TRUE(client.send(get("/cache/stream")));
  ASSERT_TRUE(client.receive_until(R"("whole":true)"));
  const auto began = std::chrono::steady_clock::now();
  server->stop(60 * kNanosPerSecond);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
  EXPECT_TRUE(client.receive().has_value()) << "it is not whole";
}

// Its first map is more than the sockets hold.
TEST(CacheStream, AClientThatReadsSlowlyMissesFramesAndThenGetsAWholeMap) {
  LiveMap map({"serve", "m", "auto"});
  MapFrame frame;
  frame.sequences.resize(30'000);
  for (size_t i = 0; i < frame.sequences.size(); ++i) frame.sequences[i].id = i + 1;
  const Shower shower(map, frame);
  RunningServer server(say("x"), test_options(), /*ready=*/false);
  ModelService service = server.service();
  service.map = &map;
  server->serve(service);
  HttpClient client(server.port(), /*receive_buffer_bytes=*/16 * 1024);
  ASSERT_TRUE(client.send(get("/cache/stream")));
  while (map.viewers() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  shower.wait_for_frames(4);
  ASSERT_TRUE(client.receive_until(R"("whole":true)", 2));
  shower.wait_for_frames(2);
  server->drain();
  const auto answer = client.receive();
  ASSERT_TRUE(answer.has_value());
  int heads = 0;
  uint64_t last = 0, missed = 0;
  bool after_head = false;
  for (const std::string& event : events(answer->body)) {
    if (event.starts_with(R"({"kvasir_map":)")) {
      ++heads;
      after_head = true;
      continue;
    }
    const json line = json::parse(event);
    const auto number = line.at("f").get<uint64_t>();
    if (std::exchange(after_head, false)) {
      EXPECT_TRUE(line.value("whole", false)) << number;
      EXPECT_EQ(line.at("seqs").size(), frame.sequences.size());
      if (last > 0) missed += number - last - 1;
    } else {
      EXPECT_EQ(number, last + 1) << "a change of a map that the client does not have";
    }
    last = number;
  }
  EXPECT_EQ(heads, 2);
  EXPECT_GE(missed, 2u);
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
  ApiKey seeing = plain_key("olga", "of-olga");
  seeing.may_see_cache = true;
  options.named_keys = {key, seeing};
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
  const Shower shower(map);
  HttpClient client(server.port());
  ASSERT_TRUE(client.send(get("/cache/stream", "x-api-key: of-olga\r\n")));
  EXPECT_TRUE(client.receive_until(R"("whole":true)")) << client.received();
  EXPECT_TRUE(client.received().starts_with("HTTP/1.1 200 ")) << client.received();
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

// A log that is being written, of which only the map's lines count.
TEST(CacheRecords, AMapThatIsTooLongIsAnErrorAndSoIsAFileThatIsGone) {
  std::string log = R"({"kvasir_map":1,"groups":1})"
                    "\n" +
                    (R"({"view":{},"plan":")" + std::string(1000, 'x')) + "\"}\n" +
                    R"({"f":1,"whole":true})"
                    "\n";
  const std::string unfinished = log + R"({"f":2,"t")";
  const TempFile file(std::as_bytes(std::span(unfinished)));
  const TempFile longer(std::as_bytes(std::span(log)));
  ServerOptions options = test_options();
  options.records = {
      {"run.jsonl", file.path(), 49}, {"longer.jsonl", longer.path(), 48}, {"none", "/none", 48}};
  RunningServer server(say("x"), options, /*ready=*/false);
  EXPECT_EQ(server.ask(get("/cache/records/0")).body,
            "{\"kvasir_map\":1,\"groups\":1}\n{\"f\":1,\"whole\":true}\n");
  HttpAnswer answer = server.ask(get("/cache/records/1"));
  EXPECT_EQ(answer.status, 500);
  EXPECT_NE(answer.body.find(": its cache map has more than 48 B, which is all that the page takes: "
                             "record a shorter run"),
            std::string::npos)
      << answer.body;
  answer = server.ask(get("/cache/records/2"));
  EXPECT_EQ(answer.status, 500);
  EXPECT_NE(answer.body.find("/none: No such file"), std::string::npos) << answer.body;
}

}  // namespace
}  // namespace kvasir::test
