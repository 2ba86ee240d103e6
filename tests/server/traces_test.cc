// Spans: what they say of a request, and how they reach a collector that is well, slow, wrong or dead.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "server/collector.h"
#include "server/http_caller.h"
#include "server/running_server.h"
#include "server/traces/otlp_json.h"
#include "server/traces/request_spans.h"
#include "server/traces/span_exporter.h"

namespace {

constexpr const char* kSlowName = "slow.example";
std::atomic<bool> slow_name_answers{false};
std::atomic<int> slow_name_asked{0};

}  // namespace

// In place of the C library's: kSlowName has no answer until the test says so.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints, addrinfo** found) {
  if (host != nullptr && std::string_view(host) == kSlowName) {
    ++slow_name_asked;
    while (!slow_name_answers) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return EAI_NONAME;
  }
  const auto next = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return next(host, port, hints, found);
}

namespace kvasir::test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kParent = "00f067aa0ba902b7";
const std::string kTraceparent = "traceparent: 00-" + kTrace + "-" + kParent + "-01\r\n";

SpanExporterOptions quick(const std::string& url) {
  SpanExporterOptions options;
  options.endpoint = url;
  options.version = "1.2.3";
  options.interval = kNanosPerMilli;
  options.first_pause = options.longest_pause = kNanosPerMilli;
  return options;
}

std::unique_ptr<SpanExporter> start_exporter(SpanExporterOptions options) {
  auto exporter = SpanExporter::start(std::move(options));
  KV_CHECK(exporter.ok(), "{}", exporter.status().message());
  return std::move(exporter).value();
}

std::vector<Span> some_spans(size_t count) {
  std::vector<Span> spans(count);
  for (Span& span : spans) {
    span.trace_id = kTrace;
    span.span_id = kParent;
    span.name = "a span";
  }
  return spans;
}

// ---------------------------------------------------------------- what spans say

TEST(RequestSpans, AServerSpanWithItsStages) {
  ExchangeRecord record;
  record.begin = 1000;
  record.status = 200;
  record.sent_bytes = 77;
  record.trace =
      read_trace_context({{"traceparent", "00-" + kTrace + "-" + kParent + "-01"}, {"tracestate", "a=1"}});
  record.generation.operation = "chat";
  record.generation.model = "smol";
  record.generation.prompt_tokens = 12;
  record.generation.output_tokens = 34;
  record.generation.cached_tokens = 5;
  record.generation.first_token = 1000 + kNanosPerSecond / 2;
  record.generation.finish_reasons = {"stop"};
  auto timeline = std::make_shared<RequestTimeline>();
  timeline->arrived(1100);
  timeline->ran(1200);
  timeline->preempted(1300);
  timeline->ran(1400);
  timeline->began_output(1500);
  timeline->preempted(1600);
  timeline->ran(1700);
  timeline->ended(1800);
  record.generation.timelines = {{2, timeline}};
  const std::vector<Span> spans = request_spans({record, 2000, "req-1", "team-a", "127.0.0.1:9", "POST",
                                                 "/v1/chat/completions", "/v1/chat/completions"},
                                                1'000'002'000);
  std::vector<std::string> names;
  for (const Span& span : spans) {
    names.push_back(span.name);
    EXPECT_EQ(span.trace_id, kTrace);
    EXPECT_EQ(span.trace_state, "a=1");
    EXPECT_EQ(span.parent_id, &span == &spans.front() ? kParent : spans.front().span_id);
  }
  EXPECT_THAT(names,
              ElementsAre("POST /v1/chat/completions", "queue", "prefill", "decode", "stall", "stall"));
  const auto times = [&](size_t i) {
    return std::pair(spans[i].begin_ns - 1'000'000'000, spans[i].end_ns - 1'000'000'000);
  };
  EXPECT_EQ(times(0), std::pair(int64_t{1000}, int64_t{2000}));
  EXPECT_EQ(times(1), std::pair(int64_t{1100}, int64_t{1200}));
  EXPECT_EQ(times(2), std::pair(int64_t{1200}, int64_t{1500}));
  EXPECT_EQ(times(3), std::pair(int64_t{1500}, int64_t{1800}));
  EXPECT_EQ(times(4), std::pair(int64_t{1300}, int64_t{1400}));
  EXPECT_EQ(times(5), std::pair(int64_t{1600}, int64_t{1700}));
  EXPECT_EQ(spans[0].kind, Span::Kind::kServer);
  EXPECT_FALSE(spans[0].failed);

  const json sent = json::parse(otlp_json(spans, {{"service.name", std::string("kvasir")}}, "1.2.3"));
  const json& resource = sent["resourceSpans"][0];
  EXPECT_EQ(attribute(resource["resource"], "service.name"), "kvasir");
  EXPECT_EQ(resource["scopeSpans"][0]["scope"], json({{"name", "kvasir"}, {"version", "1.2.3"}}));
  const json& server = resource["scopeSpans"][0]["spans"][0];
  EXPECT_EQ(server["traceId"], kTrace);
  EXPECT_EQ(server["parentSpanId"], kParent);
  EXPECT_EQ(server["traceState"], "a=1");
  EXPECT_EQ(server["kind"], 2);
  EXPECT_EQ(server["startTimeUnixNano"], "1000001000");
  EXPECT_EQ(server["endTimeUnixNano"], "1000002000");
  EXPECT_FALSE(server.contains("status"));
  const std::pair<const char*, json> promised[] = {
      {"http.request.method", "POST"},
      {"http.route", "/v1/chat/completions"},
      {"http.response.status_code", "200"},
      {"http.response.size", "77"},
      {"client.address", "127.0.0.1"},
      {"gen_ai.operation.name", "chat"},
      {"gen_ai.provider.name", "kvasir"},
      {"gen_ai.request.model", "smol"},
      {"gen_ai.response.model", "smol"},
      {"gen_ai.usage.input_tokens", "12"},
      {"gen_ai.usage.output_tokens", "34"},
      {"gen_ai.usage.cache_read.input_tokens", "5"},
      {"gen_ai.response.time_to_first_chunk", 0.5},
      {"kvasir.request_id", "req-1"},
      {"kvasir.key", "team-a"},
      {"kvasir.end", "complete"},
  };
  for (const auto& [name, value] : promised) EXPECT_EQ(attribute(server, name), value) << name;
  EXPECT_EQ(attribute(server, "gen_ai.response.finish_reasons")["values"][0]["stringValue"], "stop");
  EXPECT_EQ(attribute(resource["scopeSpans"][0]["spans"][3], "kvasir.preemptions"), "2");
  EXPECT_EQ(attribute(resource["scopeSpans"][0]["spans"][3], "kvasir.choice"), "2");
  EXPECT_EQ(resource["scopeSpans"][0]["spans"][1]["kind"], 1);
}

TEST(RequestSpans, AStageThatHasNotEndedEndsWithTheRequest) {
  ExchangeRecord record;
  record.begin = 1000;
  record.status = 499;
  record.end = RequestEnd::kClientGone;
  record.trace = new_trace_context();
  auto waits = std::make_shared<RequestTimeline>(), stalled = std::make_shared<RequestTimeline>();
  waits->arrived(1100);
  stalled->arrived(1100);
  stalled->ran(1200);
  stalled->preempted(1300);
  record.generation.timelines = {{0, waits}, {1, stalled}};
  const auto spans = request_spans({record, 2000, "r", "-", "[::1]:9", "POST", "/x", "/x"}, 2000);
  std::vector<std::string> names;
  for (const Span& span : spans) names.push_back(span.name);
  EXPECT_THAT(names, ElementsAre("POST /x", "queue", "queue", "prefill", "stall"));
  EXPECT_EQ(spans[1].end_ns, 2000);
  EXPECT_EQ(spans[3].end_ns, 2000);
  EXPECT_EQ(spans[4].end_ns, 2000);
  EXPECT_FALSE(spans[0].failed) << "not the server's fault";
}

TEST(RequestSpans, StallsAreBoundedAndCounted) {
  RequestTimeline timeline;
  for (Nanos at = 1; at <= 1000; at += 2) {
    timeline.preempted(at);
    timeline.ran(at + 1);
  }
  EXPECT_EQ(timeline.times().stalls.size(), RequestTimes::kMostStalls);
  EXPECT_EQ(timeline.times().preemptions, 500u);
  EXPECT_EQ(timeline.times().stalls.back().end, timeline.times().stalls.back().begin + 1);
}

TEST(RequestSpans, OneTimelineForEachChoiceHoweverOftenItIsSubmitted) {
  ExchangeRecord record;
  record.wants_times = true;
  GenerationRequest first, third, late;
  record.add_timeline(third, 2);
  record.add_timeline(first, 0);
  record.add_timeline(third, 2);
  record.add_timeline(late, GenerationRecord::kMostTimelines);
  ASSERT_EQ(record.generation.timelines.size(), 2u);
  EXPECT_EQ(record.generation.timelines[0].index, 2u);
  EXPECT_EQ(record.generation.timelines[0].timeline, third.timeline);
  EXPECT_EQ(record.generation.timelines[1].index, 0u);
  EXPECT_EQ(late.timeline, nullptr);
}

TEST(RequestSpans, AFaultOfTheServerIsAnError) {
  ExchangeRecord record;
  record.begin = 1;
  record.status = 503;
  record.error = "overloaded";
  record.trace = new_trace_context();
  const auto spans = request_spans({record, 2, "r", "-", "x:1", "BREW", "/x", "/x"}, 2);
  EXPECT_EQ(spans[0].name, "_OTHER /x");
  const json span = json::parse(otlp_json(spans, {}, ""))["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
  EXPECT_EQ(span["status"]["code"], 2);
  EXPECT_EQ(attribute(span, "error.type"), "overloaded");
  EXPECT_FALSE(span.contains("parentSpanId"));
}

TEST(OtlpJson, WhatTheCollectorRejects) {
  EXPECT_EQ(rejected_spans(R"({"partialSuccess":{"rejectedSpans":"3","errorMessage":"no"}})"), 3u);
  EXPECT_EQ(rejected_spans(R"({"partialSuccess":{"rejectedSpans":3}})"), 3u);
  for (const char* none : {"", "{}", "[]", "{", R"({"partialSuccess":{}})", R"({"partialSuccess":[1]})",
                           R"({"partialSuccess":{"rejectedSpans":[]}})"}) {
    EXPECT_EQ(rejected_spans(none), 0u) << none;
  }
}

// ---------------------------------------------------------------- the way to the collector

TEST(HttpUrl, OfAnEndpoint) {
  const HttpUrl plain = parse_http_url("http://collector").value();
  EXPECT_EQ(plain.host + " " + plain.port + " " + plain.path, "collector 80 /");
  const HttpUrl full = parse_http_url("https://[::1]:4318/a/b").value();
  EXPECT_TRUE(full.tls);
  EXPECT_EQ(full.host + " " + full.port + " " + full.path, "::1 4318 /a/b");
  EXPECT_EQ(full.authority(), "[::1]:4318");
  for (const char* wrong : {"", "collector:4318", "ftp://x", "http://", "http://:80", "http://x:0",
                            "http://x:70000", "http://x:a", "http://user@x", "http://x/?a", "http://x y"}) {
    EXPECT_FALSE(parse_http_url(wrong).ok()) << wrong;
    EXPECT_FALSE(SpanExporter::start(quick(wrong)).ok()) << wrong;
  }
}

// The first bytes of TLS are not encrypted: they have the name, if one is sent.
TEST(HttpCaller, TellsTlsANameAndNoAddress) {
  namespace asio = boost::asio;
  for (const char* host : {"localhost", "127.0.0.1"}) {
    asio::io_context io;
    asio::ip::tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
    const HttpUrl url =
        parse_http_url(fmt::format("https://{}:{}", host, acceptor.local_endpoint().port())).value();
    std::thread posting([&] {
      const auto poster = HttpCaller::create(url, [] { return false; }).value();
      EXPECT_FALSE(poster->post("{}", 10 * kNanosPerSecond).ok());
    });
    std::string hello(4096, ' ');
    {
      asio::ip::tcp::socket socket = acceptor.accept();
      hello.resize(socket.read_some(asio::buffer(hello)));
    }
    posting.join();
    EXPECT_TRUE(hello.starts_with("\x16\x03"));
    EXPECT_EQ(hello.find(host) != std::string::npos, host == std::string("localhost"));
  }
}

TEST(SpanExporter, SendsBatchesOfJson) {
  const Collector collector;
  const auto exporter = start_exporter(quick(collector.url()));
  exporter->add(some_spans(3));
  exporter->add(some_spans(2));
  ASSERT_TRUE(collector.wait_spans(5));
  EXPECT_TRUE(eventually([&] { return exporter->exported() == 5; }));
  EXPECT_THAT(collector.heads()[0], StartsWith("POST /v1/traces HTTP/1.1\r\n"));
  EXPECT_THAT(collector.heads()[0], HasSubstr("\r\nContent-Type: application/json\r\n"));
  const json resource = collector.bodies()[0]["resourceSpans"][0]["resource"];
  EXPECT_EQ(attribute(resource, "service.name"), "kvasir");
  EXPECT_EQ(attribute(resource, "service.version"), "1.2.3");
  EXPECT_EQ(exporter->dropped() + exporter->failed(), 0u);
}

TEST(SpanExporter, AddsThePathOnce) {
  for (const auto& [path, wanted] :
       {std::pair("", "/v1/traces "), std::pair("/", "/v1/traces "), std::pair("/otlp/", "/otlp/v1/traces "),
        std::pair("/v1/traces", "/v1/traces ")}) {
    const Collector collector;
    const auto exporter = start_exporter(quick(collector.url() + path));
    exporter->add(some_spans(1));
    ASSERT_TRUE(collector.wait_posts(1));
    EXPECT_THAT(collector.heads()[0], StartsWith(std::string("POST ") + wanted));
  }
}

TEST(SpanExporter, SendsWhatIsLeftAtTheEnd) {
  const Collector collector;
  SpanExporterOptions options = quick(collector.url());
  options.interval = 3600 * kNanosPerSecond;
  auto exporter = start_exporter(options);
  exporter->add(some_spans(4));
  exporter = nullptr;
  EXPECT_EQ(collector.spans().size(), 4u);
}

TEST(SpanExporter, ABatchIsNoLargerThanSaid) {
  const Collector collector;
  SpanExporterOptions options = quick(collector.url());
  options.max_batch_spans = 2;
  const auto exporter = start_exporter(options);
  exporter->add(some_spans(5));
  ASSERT_TRUE(collector.wait_spans(5));
  for (const json& body : collector.bodies()) {
    EXPECT_LE(body["resourceSpans"][0]["scopeSpans"][0]["spans"].size(), 2u);
  }
}

TEST(SpanExporter, TriesAgainWhereOtlpSaysSo) {
  for (const char* status : {"429 Too Many Requests", "502 x", "503 x", "504 x"}) {
    const Collector collector([&](size_t i) { return http_answer(i == 0 ? status : "200 OK"); });
    const auto exporter = start_exporter(quick(collector.url()));
    exporter->add(some_spans(2));
    EXPECT_TRUE(eventually([&] { return exporter->exported() == 2; })) << status;
    EXPECT_EQ(collector.heads().size(), 2u) << status;
    EXPECT_EQ(exporter->failed(), 0u);
  }
}

TEST(SpanExporter, TriesNotAgainWhereOtlpForbidsIt) {
  for (const char* status : {"500 Internal Server Error", "400 Bad Request", "404 Not Found", "501 x"}) {
    const Collector collector([&](size_t) { return http_answer(status); });
    const auto exporter = start_exporter(quick(collector.url()));
    exporter->add(some_spans(2));
    EXPECT_TRUE(eventually([&] { return exporter->failed() == 2; })) << status;
    exporter->add(some_spans(3));
    EXPECT_TRUE(eventually([&] { return exporter->failed() == 5; })) << status;
    EXPECT_EQ(collector.heads().size(), 2u) << status;
    EXPECT_EQ(exporter->exported(), 0u);
  }
}

TEST(SpanExporter, GivesUpAfterItsTries) {
  const Collector collector([](size_t) { return http_answer("503 x"); });
  SpanExporterOptions options = quick(collector.url());
  options.tries = 3;
  const auto exporter = start_exporter(options);
  exporter->add(some_spans(2));
  EXPECT_TRUE(eventually([&] { return exporter->failed() == 2; }));
  EXPECT_EQ(collector.heads().size(), 3u);
}

TEST(SpanExporter, WaitsAsLongAsRetryAfterSays) {
  std::vector<Nanos> came;
  const Collector collector([&](size_t i) {
    came.push_back(MonotonicClock().now());
    return i == 0 ? http_answer("429 x", "{}", "Retry-After: 1\r\n") : http_answer("200 OK");
  });
  const auto exporter = start_exporter(quick(collector.url()));
  exporter->add(some_spans(1));
  ASSERT_TRUE(eventually([&] { return exporter->exported() == 1; }));
  EXPECT_GE(came[1] - came[0], 990 * kNanosPerMilli);
}

TEST(SpanExporter, CountsWhatTheCollectorRejects) {
  const Collector collector(
      [](size_t) { return http_answer("200 OK", R"({"partialSuccess":{"rejectedSpans":"2"}})"); });
  const auto exporter = start_exporter(quick(collector.url()));
  exporter->add(some_spans(3));
  EXPECT_TRUE(eventually([&] { return exporter->exported() == 1 && exporter->failed() == 2; }));
}

TEST(SpanExporter, ACollectorThatAnswersNoHttpIsTriedAgain) {
  const Collector collector(
      [](size_t i) { return i == 0 ? std::string("hello\r\n\r\n") : http_answer("200 OK"); });
  const auto exporter = start_exporter(quick(collector.url()));
  exporter->add(some_spans(1));
  EXPECT_TRUE(eventually([&] { return exporter->exported() == 1; }));
}

TEST(SpanExporter, ALongBodyDoesNotMakeASuccessAFailure) {
  const std::string head = "HTTP/1.1 200 OK\r\n", ended = "Connection: close\r\n\r\n", body(100'000, ' ');
  for (const std::string& answer : {http_answer("200 OK", body), head + ended + body,
                                    head + "Content-Length: 10\r\n" + ended + "cut off"}) {
    const Collector collector([&](size_t) { return answer; });
    const auto exporter = start_exporter(quick(collector.url()));
    exporter->add(some_spans(2));
    EXPECT_TRUE(eventually([&] { return exporter->exported() == 2; })) << answer.substr(0, 60);
    EXPECT_EQ(collector.heads().size(), 1u);
  }
}

// What finds no room is dropped and counted; add() returns at once, and so does the end.
TEST(SpanExporter, ACollectorThatHangsHoldsNothingUp) {
  const Collector collector([](size_t) { return std::string(); });
  SpanExporterOptions options = quick(collector.url());
  options.timeout = 3600 * kNanosPerSecond;
  options.flush_timeout = 50 * kNanosPerMilli;
  options.max_queued_spans = 10;
  auto exporter = start_exporter(options);
  exporter->add(some_spans(1));
  ASSERT_TRUE(collector.wait_posts(1));
  for (int i = 0; i < 1000; ++i) exporter->add(some_spans(3));
  EXPECT_EQ(exporter->dropped(), 997u * 3);
  EXPECT_EQ(exporter->exported() + exporter->failed(), 0u);
  exporter = nullptr;  // within the time that the test may take
}

TEST(SpanExporter, ACollectorThatHangsIsGivenUpInTime) {
  const Collector collector([](size_t i) { return i == 0 ? std::string() : http_answer("200 OK"); });
  SpanExporterOptions options = quick(collector.url());
  options.timeout = 200 * kNanosPerMilli;
  const auto exporter = start_exporter(options);
  exporter->add(some_spans(1));
  EXPECT_TRUE(eventually([&] { return exporter->exported() == 1; }));
}

// The name service may hang for longer than a POST may take. One look-up waits for it, whatever is tried
// meanwhile.
TEST(SpanExporter, ANameThatIsNotFoundInTimeHoldsNothingUp) {
  SpanExporterOptions options = quick("http://" + std::string(kSlowName));
  options.timeout = 10 * kNanosPerMilli;
  options.flush_timeout = 10 * kNanosPerMilli;
  options.tries = 2;
  auto exporter = start_exporter(options);
  exporter->add(some_spans(1));
  EXPECT_TRUE(eventually([&] { return exporter->failed() == 1; }));
  exporter->add(some_spans(1));
  EXPECT_TRUE(eventually([&] { return exporter->failed() == 2; }));
  EXPECT_EQ(slow_name_asked, 1) << "of four tries";
  exporter->add(some_spans(1));
  exporter = nullptr;
  slow_name_answers = true;  // the end has not waited for it
}

TEST(SpanExporter, ACollectorThatIsNotThereIsTriedAgain) {
  std::string url;
  {
    const Collector gone;
    url = gone.url();
  }
  SpanExporterOptions options = quick(url);
  options.tries = 2;
  const auto exporter = start_exporter(options);
  exporter->add(some_spans(2));
  EXPECT_TRUE(eventually([&] { return exporter->failed() == 2; }));
  EXPECT_EQ(exporter->metrics()[2].value, 2);
}

// ---------------------------------------------------------------- a server with traces

class TracesOfServer : public ::testing::Test {
 protected:
  ServerOptions options() {
    ServerOptions o = test_options();
    o.spans = start_exporter(quick(collector_.url()));
    return o;
  }
  Collector collector_;
};

TEST_F(TracesOfServer, ARequestGoesOnWithItsTrace) {
  RunningServer server(say("Hello"), options());
  const HttpAnswer answer = server.ask(post(kChatPath, chat_body(), kTraceparent + "tracestate: a=1\r\n"));
  EXPECT_EQ(answer.status, 200);
  ASSERT_TRUE(collector_.wait_spans(1));
  const json span = collector_.spans()[0];
  EXPECT_EQ(span["name"], "POST /v1/chat/completions");
  EXPECT_EQ(span["traceId"], kTrace);
  EXPECT_EQ(span["parentSpanId"], kParent);
  EXPECT_EQ(span["traceState"], "a=1");
  EXPECT_EQ(answer.headers.at("traceresponse"),
            "00-" + kTrace + "-" + span["spanId"].get<std::string>() + "-01");
  EXPECT_EQ(attribute(span, "gen_ai.operation.name"), "chat");
  EXPECT_EQ(attribute(span, "gen_ai.request.model"), "test-model");
  EXPECT_EQ(attribute(span, "gen_ai.usage.input_tokens"),
            std::to_string(std::string("user: hi|assistant:").size()));
  EXPECT_EQ(collector_.bodies()[0].dump().find("Hello"), std::string::npos) << "no text";
}

TEST_F(TracesOfServer, WithoutOneANewOneBegins) {
  RunningServer server(say("Hello"), options());
  const HttpAnswer streamed = server.ask(post("/v1/completions", R"({"prompt":"x","stream":true})"));
  ASSERT_TRUE(collector_.wait_spans(1));
  EXPECT_EQ(streamed.headers.at("traceresponse").substr(3, 32), collector_.spans()[0]["traceId"]);
  EXPECT_FALSE(collector_.spans()[0].contains("parentSpanId"));
  EXPECT_EQ(attribute(collector_.spans()[0], "gen_ai.operation.name"), "text_completion");
  server.ask(post(kChatPath, chat_body(), "traceparent: 00-0-0-01\r\n"));
  ASSERT_TRUE(collector_.wait_spans(2));
  EXPECT_NE(collector_.spans()[1]["traceId"], collector_.spans()[0]["traceId"]);
}

TEST_F(TracesOfServer, OneThatIsNotSampledIsPassedOnAndNotSent) {
  RunningServer server(say("Hello"), options());
  const HttpAnswer answer =
      server.ask(post(kChatPath, chat_body(), "traceparent: 00-" + kTrace + "-" + kParent + "-00\r\n"));
  EXPECT_THAT(answer.headers.at("traceresponse"), StartsWith("00-" + kTrace + "-"));
  EXPECT_TRUE(answer.headers.at("traceresponse").ends_with("-00"));
  server.ask(post(kChatPath, chat_body(), kTraceparent));  // the next one is
  ASSERT_TRUE(collector_.wait_spans(1));
  EXPECT_EQ(collector_.spans().size(), 1u);
  EXPECT_TRUE(server.backend().submitted()[0].timeline == nullptr) << "the engine has nothing to note";
  EXPECT_TRUE(server.backend().submitted()[1].timeline != nullptr);
}

TEST_F(TracesOfServer, ProbesHaveNoSpans) {
  RunningServer server(say("Hello"), options());
  EXPECT_FALSE(server.ask(get("/health")).headers.contains("traceresponse"));
  EXPECT_FALSE(server.ask(get("/metrics")).headers.contains("traceresponse"));
  server.ask(post(kChatPath, chat_body()));
  ASSERT_TRUE(collector_.wait_spans(1));
  EXPECT_EQ(collector_.spans()[0]["name"], "POST /v1/chat/completions");
}

TEST_F(TracesOfServer, ARefusalHasASpan) {
  RunningServer server(say("Hello"), options());
  server.backend().refuse(Status(ErrorCode::kExhausted, "full"));
  EXPECT_EQ(server.ask(post(kChatPath, chat_body())).status, 503);
  ASSERT_TRUE(collector_.wait_spans(1));
  EXPECT_EQ(attribute(collector_.spans()[0], "error.type"), "overloaded");
  EXPECT_EQ(collector_.spans()[0]["status"]["code"], 2);
}

TEST_F(TracesOfServer, CountersAreInTheMetrics) {
  RunningServer server(say("Hello"), options());
  server.ask(post(kChatPath, chat_body()));
  ASSERT_TRUE(collector_.wait_spans(1));
  const auto says = [&](const std::string& line) {
    return server.ask(get("/metrics")).body.find(line) != std::string::npos;
  };
  EXPECT_TRUE(
      eventually([&] { return says("kvasir:trace_spans_exported_total{model_name=\"test-model\"} 1\n"); }));
  EXPECT_TRUE(says("kvasir:trace_spans_dropped_total{model_name=\"test-model\"} 0\n"));
}

TEST(Traces, WithoutAnExporterATraceIsOnlyAnswered) {
  RunningServer server(say("Hello"));
  EXPECT_FALSE(server.ask(post(kChatPath, chat_body())).headers.contains("traceresponse"));
  const HttpAnswer answer = server.ask(post(kChatPath, chat_body(), kTraceparent));
  EXPECT_THAT(answer.headers.at("traceresponse"), StartsWith("00-" + kTrace + "-"));
  EXPECT_TRUE(answer.headers.at("traceresponse").ends_with("-00"));
}

TEST(Traces, RequestsDoNotNoticeACollectorThatHangs) {
  const Collector collector([](size_t) { return std::string(); });
  SpanExporterOptions exporter = quick(collector.url());
  exporter.flush_timeout = 50 * kNanosPerMilli;
  exporter.max_queued_spans = 2;
  ServerOptions options = test_options();
  options.spans = start_exporter(exporter);
  RunningServer server(say("Hello"), options);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(server.ask(post(kChatPath, chat_body())).status, 200);
  EXPECT_GT(options.spans->dropped(), 0u);
}

}  // namespace
}  // namespace kvasir::test
