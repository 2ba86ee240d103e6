// Events of the prefix cache on their way to routers: settings, queue, encoding, and the sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zmq.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/kv_events/kv_event_codec.h"
#include "server/kv_events/kv_event_publisher.h"
#include "server/kv_events/kv_event_queue.h"
#include "server/kv_events/kv_events_config.h"
#include "server/kv_events/replay_buffer.h"

namespace kvasir::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

CacheEvent stored(uint64_t hash, std::optional<uint64_t> parent, Tier tier, std::vector<Token> tokens) {
  return {CacheEvent::Kind::kStored, tier, hash, parent, std::move(tokens)};
}
CacheEvent removed(uint64_t hash, Tier tier = Tier::kDevice) {
  return {CacheEvent::Kind::kRemoved, tier, hash, {}, {}};
}

TEST(KvEventsConfig, HasTheKnownNamesAndDefaults) {
  const KvEventsConfig off = parse_kv_events_config("{}").value();
  EXPECT_FALSE(off.enabled);
  const KvEventsConfig plain = parse_kv_events_config(R"({"enable_kv_cache_events":true})").value();
  EXPECT_TRUE(plain.enabled);
  EXPECT_EQ(plain.endpoint, "tcp://*:5557");
  EXPECT_EQ(plain.replay_endpoint, "");
  EXPECT_EQ(plain.topic, "");
  EXPECT_EQ(plain.buffer_steps, 10'000u);
  EXPECT_EQ(plain.hwm, 100'000u);
  EXPECT_EQ(plain.max_queue_size, 100'000u);
  const KvEventsConfig all = parse_kv_events_config(
                                 R"({"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"ipc:///x",
      "replay_endpoint":"tcp://*:1","buffer_steps":2,"hwm":3,"max_queue_size":4,"topic":"kv@a@b"})")
                                 .value();
  EXPECT_EQ(all.endpoint, "ipc:///x");
  EXPECT_EQ(all.replay_endpoint, "tcp://*:1");
  EXPECT_EQ(all.buffer_steps, 2u);
  EXPECT_EQ(all.hwm, 3u);
  EXPECT_EQ(all.max_queue_size, 4u);
  EXPECT_EQ(all.topic, "kv@a@b");
  EXPECT_FALSE(
      parse_kv_events_config(R"({"enable_kv_cache_events":true,"publisher":"null"})").value().enabled);
}

TEST(KvEventsConfig, NamesWhatIsWrong) {
  const auto message = [](std::string_view text) { return parse_kv_events_config(text).status().message(); };
  EXPECT_THAT(message("tcp://*:5557"), HasSubstr("--kv-events-config"));
  EXPECT_THAT(message(R"({"endpiont":"x"})"), HasSubstr("'endpiont'"));
  EXPECT_THAT(message(R"({"hwm":0})"), HasSubstr("'hwm'"));
  EXPECT_THAT(message(R"({"topic":5})"), HasSubstr("'topic'"));
  EXPECT_THAT(message(R"({"publisher":"nats"})"), HasSubstr("'publisher'"));
}

TEST(KvEventsConfig, AnAddressAloneIsEnoughAndIsBound) {
  const KvEventsConfig config = kv_events_at("tcp://127.0.0.1:5557").value();
  EXPECT_TRUE(config.enabled);
  EXPECT_EQ(config.endpoint, "@tcp://127.0.0.1:5557");
  EXPECT_EQ(config.topic, "");
  for (const char* wrong : {"127.0.0.1:5557", "{}", "", "http://*:5557"}) {
    EXPECT_THAT(kv_events_at(wrong).status().message(), HasSubstr("--kv-events-endpoint: must be tcp://"))
        << wrong;
  }
}

TEST(KvEventCodec, WritesWhatAReaderExpects) {
  const std::vector<CacheEvent> events = {
      {},
      stored(5, {}, Tier::kDevice, {1, 2}),
      stored(UINT64_MAX, 5, Tier::kDevice, {70000, 4}),  // goes on behind the first
      stored(9, 5, Tier::kDevice, {5, 6}),               // does not
      stored(10, 9, Tier::kHost, {7, 8}),                // nor on another tier
      removed(9),
      removed(5),
      removed(10, Tier::kHost),
      removed(11, Tier::kDisk)};
  const json got = json::from_msgpack(encode_kv_events(1.5, events, 2));
  const auto block = [](const json& hashes, const json& parent, const json& tokens, const char* medium) {
    return json{{"type", "BlockStored"}, {"block_hashes", hashes}, {"parent_block_hash", parent},
                {"token_ids", tokens},   {"block_size", 2},        {"lora_id", nullptr},
                {"medium", medium},      {"lora_name", nullptr}};
  };
  const auto gone = [](const json& hashes, const char* medium) {
    return json{{"type", "BlockRemoved"}, {"block_hashes", hashes}, {"medium", medium}};
  };
  const json want = {1.5,
                     {{{"type", "AllBlocksCleared"}},
                      block({5, UINT64_MAX}, nullptr, {1, 2, 70000, 4}, "GPU"),
                      block({9}, 5, {5, 6}, "GPU"),
                      block({10}, 9, {7, 8}, "CPU"),
                      gone({9, 5}, "GPU"),
                      gone({10}, "CPU"),
                      gone({11}, "DISK")},
                     0};
  EXPECT_EQ(got, want);
}

// By hand, from the specification of MessagePack.
TEST(KvEventCodec, WritesTheseBytes) {
  const std::vector<CacheEvent> events = {removed(1)};
  std::string want = "\x93\xcb";
  want += std::string("\x41\xd9\x5b\x0a\x8b\x40\x00\x00", 8);  // 1701587501 as a double
  want +=
      "\x91\x83\xa4type\xac"
      "BlockRemoved\xac"
      "block_hashes\x91\x01\xa6medium\xa3GPU";
  want += std::string(1, '\0');
  const std::vector<uint8_t> got = encode_kv_events(1701587501, events, 64);
  EXPECT_EQ(std::string(got.begin(), got.end()), want);
  EXPECT_THAT(big_endian(0x0102030405060708), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

TEST(KvEventQueue, DropsWhatHasNoRoomAndThenWantsEverything) {
  int wakes = 0;
  KvEventQueue queue(3, [&] { ++wakes; });
  EXPECT_TRUE(queue.wants_everything()) << "a reader of the last life has to forget it";
  queue.publish({removed(1)});
  EXPECT_FALSE(queue.pop()) << "before anything was told";
  queue.publish({CacheEvent{}, removed(1), removed(2), removed(3), removed(4)});
  EXPECT_FALSE(queue.wants_everything());
  EXPECT_EQ(queue.pop()->sequence, 1u) << "the first list has a number, too";
  queue.publish({removed(1), removed(2)});
  queue.publish({removed(3)});
  EXPECT_EQ(queue.stats().queued, 3u);
  queue.publish({removed(4)});  // number 4: no room
  EXPECT_FALSE(queue.wants_everything()) << "there is no room for it";
  EXPECT_EQ(queue.pop()->sequence, 2u);
  queue.publish({removed(5)});  // number 5: there is room, but a reader would lack number 4
  EXPECT_EQ(queue.pop()->sequence, 3u);
  EXPECT_FALSE(queue.pop());
  EXPECT_TRUE(queue.wants_everything());
  queue.publish({CacheEvent{}, removed(6)});
  const auto all = queue.pop();
  ASSERT_TRUE(all);
  EXPECT_EQ(all->sequence, 6u);
  EXPECT_GT(all->unix_seconds, 1.7e9);
  EXPECT_EQ(queue.stats().events, 5u + 3 + 2);
  EXPECT_EQ(queue.stats().dropped, 1u + 1 + 1);
  EXPECT_EQ(wakes, 4);
}

TEST(ReplayBuffer, KeepsTheLatestWithinBothBounds) {
  const auto payload = [](size_t bytes) { return std::make_shared<const std::vector<uint8_t>>(bytes); };
  ReplayBuffer buffer(3, 100);
  const auto from = [&](uint64_t first) {
    std::vector<std::pair<uint64_t, size_t>> out;
    buffer.for_each_from(first,
                         [&](uint64_t n, const ReplayBuffer::Payload& p) { out.emplace_back(n, p->size()); });
    return out;
  };
  for (uint64_t n : {0, 1, 3, 4}) buffer.add(n, payload(10 + n));
  EXPECT_THAT(from(0), ElementsAre(Pair(1, 11), Pair(3, 13), Pair(4, 14)));
  EXPECT_THAT(from(2), ElementsAre(Pair(3, 13), Pair(4, 14)));
  EXPECT_EQ(buffer.bytes(), 38u);
  buffer.add(5, payload(80));
  EXPECT_THAT(from(0), ElementsAre(Pair(4, 14), Pair(5, 80)));
  buffer.add(6, payload(200));
  EXPECT_THAT(from(0), ElementsAre(Pair(6, 200))) << "the newest, whatever its size";
}

// A socket of a reader.
class Reader {
 public:
  Reader(int type, const std::string& endpoint)
      : context_(zmq_ctx_new()), socket_(zmq_socket(context_, type)) {
    const int linger = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof(linger));
    if (type == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "kv", 2);
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0) << endpoint;
  }
  ~Reader() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }

  void send(const std::vector<std::string>& frames) {
    for (size_t i = 0; i < frames.size(); ++i)
      zmq_send(socket_, frames[i].data(), frames[i].size(), i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
  }
  // None: nothing came.
  std::vector<std::string> receive(int wait_ms = 10'000) {
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &wait_ms, sizeof(wait_ms));
    std::vector<std::string> frames;
    for (int more = 1; more != 0;) {
      std::array<char, 4096> buffer{};
      const int size = zmq_recv(socket_, buffer.data(), buffer.size(), 0);
      if (size < 0) return {};
      frames.emplace_back(buffer.data(), static_cast<size_t>(size));
      size_t length = sizeof(more);
      zmq_getsockopt(socket_, ZMQ_RCVMORE, &more, &length);
    }
    return frames;
  }

 private:
  void* const context_;
  void* const socket_;
};

std::string number(uint64_t n) {
  const auto bytes = big_endian(n);
  return {bytes.begin(), bytes.end()};
}

TEST(KvEventPublisher, TellsSubscribersAndReplaysWhatTheyMissed) {
#if defined(KVASIR_SANITIZED_THREAD)
  GTEST_SKIP() << "libzmq is not built with ThreadSanitizer, which then sees races within it";
#endif
  KvEventsConfig config;
  config.endpoint = "tcp://127.0.0.1:*";
  config.replay_endpoint = "tcp://127.0.0.1:*";
  config.topic = "kv@me@model";
  const auto started = KvEventPublisher::start(config, 2);
  ASSERT_TRUE(started.ok()) << started.status().message();
  KvEventPublisher& publisher = **started;
  CacheEventSink& sink = publisher.sink();
  Reader reader(ZMQ_SUB, publisher.endpoint()), late(ZMQ_DEALER, publisher.replay_endpoint());
  ASSERT_TRUE(sink.wants_everything());
  sink.publish({CacheEvent{}});
  // A subscription takes a while; until then messages pass by.
  std::vector<std::string> first;
  uint64_t sent = 1;
  for (; sent < 1000 && first.empty(); ++sent) {
    sink.publish({removed(sent)});
    first = reader.receive(/*wait_ms=*/20);
  }
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0], "kv@me@model");
  EXPECT_EQ(first[1].size(), 8u);

  late.send({"", number(0)});
  for (uint64_t n = 0; n < sent; ++n) {
    const std::vector<std::string> frames = late.receive();
    ASSERT_EQ(frames.size(), 3u);
    EXPECT_EQ(frames[1], number(n));
    const json batch = json::from_msgpack(frames[2]);
    ASSERT_EQ(batch.size(), 3u);
    EXPECT_EQ(batch[1][0]["type"], n == 0 ? "AllBlocksCleared" : "BlockRemoved");
    if (n > 0) {
      EXPECT_EQ(batch[1][0]["block_hashes"], json::array({n}));
    }
    if (frames[1] == first[1]) {
      EXPECT_EQ(frames[2], first[2]);
    }
  }
  EXPECT_THAT(late.receive(), ElementsAre("", number(UINT64_MAX), ""));
  // What is no request gets no answer, and does no harm.
  late.send({"", "x"});
  late.send({number(0)});
  late.send({"", number(sent)});
  EXPECT_THAT(late.receive(), ElementsAre("", number(UINT64_MAX), ""));
}

TEST(KvEventPublisher, SaysWhichEndpointIsWrong) {
  KvEventsConfig config;
  config.endpoint = "nonsense";
  EXPECT_THAT(KvEventPublisher::start(config, 64).status().message(), HasSubstr("'endpoint' nonsense"));
  config.endpoint = "@tcp://127.0.0.1:*";
  config.replay_endpoint = "tcp://127.0.0.1:x";
  EXPECT_THAT(KvEventPublisher::start(config, 64).status().message(), HasSubstr("'replay_endpoint'"));
}

}  // namespace
}  // namespace kvasir::test
