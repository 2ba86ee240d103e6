// The access log: a line for each request, with how it ended; files that are renamed; readers that are slow.
#include "server/access_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "server/running_server.h"
#include "support/temp_file.h"

namespace kvasir::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

EndedRequest ended(const ExchangeRecord& record) {
  return {record, record.begin + 5 * kNanosPerMilli, "req-1", "-", "127.0.0.1:9", "POST", "/v1/x", "/v1/x"};
}

TEST(AccessLine, HasWhatIsKnown) {
  ExchangeRecord record;
  record.begin = 1000;
  record.status = 200;
  record.sent_bytes = 77;
  record.generation.prompt_tokens = 5;
  record.generation.output_tokens = 6;
  record.generation.first_token = 1000 + 2 * kNanosPerMilli;
  record.generation.finish_reasons = {"stop", "length", "stop"};
  EXPECT_EQ(access_line(LogFormat::kText, 0, ended(record)),
            "1970-01-01T00:00:00.000Z info request request_id=req-1 key=- peer=127.0.0.1:9 method=POST "
            "path=/v1/x status=200 end=complete error=- finish_reason=length,stop prompt_tokens=5 "
            "cached_tokens=0 output_tokens=6 ttft_ms=2.000 duration_ms=5.000 bytes=77 trace_id=-\n");
}

TEST(AccessLine, FitsAPipeAtOnceWhateverAClientSends) {
  ExchangeRecord record;
  record.error = "invalid_request_error";
  EndedRequest r = ended(record);
  const std::string bytes(40'000, '\xff'), id(128, '"');
  r.path = r.method = bytes;
  r.id = id;
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    EXPECT_LE(access_line(format, 0, r).size(), 4096u);
  }
  EXPECT_TRUE(json::accept(access_line(LogFormat::kJson, 0, r)));
}

// A server with an access log in JSON.
class LoggingServer {
 public:
  explicit LoggingServer(FakeBackend::Script script, ServerOptions options = test_options())
      : path_(folder_.path() + "/access.log"),
        server(std::move(script), with_log(std::move(options), path_)) {}

  // The lines, once there are so many.
  std::vector<json> lines(size_t count) {
    std::vector<json> all;
    for (int i = 0; i < 2000 && all.size() < count; ++i) {
      all.clear();
      std::ifstream in(path_);
      for (std::string line; std::getline(in, line) && !in.eof();) all.push_back(json::parse(line));
      if (all.size() < count) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(all.size(), count);
    all.resize(count);
    return all;
  }

 private:
  static ServerOptions with_log(ServerOptions options, const std::string& path) {
    auto log = AccessLog::open(path, LogFormat::kJson);
    KV_CHECK(log.ok(), "{}", log.status().message());
    options.access_log = std::move(log).value();
    return options;
  }

  TempFolder folder_;
  const std::string path_;

 public:
  RunningServer server;
};

TEST(AccessLog, ARequestThatGenerates) {
  LoggingServer s(say("Hello"));
  EXPECT_EQ(s.server.ask(post(kChatPath, chat_body(), "X-Request-Id: my-id\r\n")).status, 200);
  const json line = s.lines(1)[0];
  EXPECT_EQ(line["level"], "info");
  EXPECT_EQ(line["message"], "request");
  EXPECT_EQ(line["request_id"], "my-id");
  EXPECT_EQ(line["key"], "-");
  EXPECT_THAT(line["peer"].get<std::string>(), HasSubstr("127.0.0.1:"));
  EXPECT_EQ(line["method"], "POST");
  EXPECT_EQ(line["path"], kChatPath);
  EXPECT_EQ(line["status"], 200);
  EXPECT_EQ(line["end"], "complete");
  EXPECT_EQ(line["error"], "-");
  EXPECT_EQ(line["finish_reason"], "stop");
  EXPECT_EQ(line["prompt_tokens"], std::string("user: hi|assistant:").size());
  EXPECT_EQ(line["output_tokens"], 6);  // the end is a token, too
  EXPECT_GT(line["bytes"].get<int>(), 200);
  EXPECT_GT(line["ttft_ms"].get<double>(), 0);
  EXPECT_GE(line["duration_ms"].get<double>(), line["ttft_ms"].get<double>());
}

TEST(AccessLog, EachRequestOfAConnectionOnce) {
  LoggingServer s(say("Hello"));
  HttpClient client(s.server.port());
  ASSERT_TRUE(client.send(get("/health") + get("/v1/models?api_key=secret") + get("/nothing")));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(client.receive().has_value());
  client.close();
  const std::vector<json> lines = s.lines(3);
  EXPECT_EQ(lines[0]["path"], "/health");
  EXPECT_EQ(lines[1]["path"], "/v1/models") << "without a query";
  EXPECT_EQ(lines[2]["status"], 404);
  EXPECT_EQ(lines[2]["error"], "not_found");
  EXPECT_EQ(lines[2]["end"], "complete");
}

TEST(AccessLog, NamesTheKeyAndNotWhatItIs) {
  ServerOptions options = test_options();
  options.named_keys = {plain_key("team-a", "sk-secret-1")};
  LoggingServer s(say("Hello"), options);
  EXPECT_EQ(s.server.ask(post(kChatPath, chat_body(), "Authorization: Bearer sk-secret-1\r\n")).status, 200);
  EXPECT_EQ(s.server.ask(post(kChatPath, chat_body(), "Authorization: Bearer sk-wrong-2\r\n")).status, 401);
  const std::vector<json> lines = s.lines(2);
  EXPECT_EQ(lines[0]["key"], "team-a");
  EXPECT_EQ(lines[1]["key"], "-");
  EXPECT_EQ(lines[1]["error"], "invalid_api_key");
  for (const json& line : lines) {
    EXPECT_THAT(line.dump(), Not(HasSubstr("sk-")));
    EXPECT_THAT(line.dump(), Not(HasSubstr("hi|")));
  }
}

TEST(AccessLog, AClientThatLeavesIs499) {
  LoggingServer s(repeat("ab"));
  s.server.backend().set_round_time(kNanosPerMilli);
  HttpClient client(s.server.port());
  ASSERT_TRUE(client.send(post(kChatPath, chat_body(R"("stream":true)"))));
  ASSERT_TRUE(client.receive_until(R"("content":"b")"));
  client.close();
  const json line = s.lines(1)[0];
  EXPECT_EQ(line["status"], 499);
  EXPECT_EQ(line["end"], "client_gone");
  EXPECT_EQ(line["finish_reason"], "-");
  EXPECT_GT(line["output_tokens"].get<int>(), 1);
}

TEST(AccessLog, AClientThatLeavesBeforeItsBodyIs499) {
  LoggingServer s(say("Hello"));
  {
    HttpClient client(s.server.port());
    ASSERT_TRUE(
        client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"));
    // The body's beginning was read when the next connection is answered.
    EXPECT_EQ(s.server.ask(get("/health")).status, 200);
  }
  const std::vector<json> lines = s.lines(2);
  EXPECT_EQ(lines[1]["path"], "/v1/completions");
  EXPECT_EQ(lines[1]["status"], 499);
  EXPECT_EQ(lines[1]["end"], "client_gone");
  EXPECT_NE(s.server.ask(get("/metrics")).body.find("status=\"499\"} 1\n"), std::string::npos);
}

TEST(AccessLog, AConnectionWithoutARequestHasNone) {
  LoggingServer s(say("Hello"));
  {
    HttpClient nothing(s.server.port()), a_part(s.server.port());
    ASSERT_TRUE(a_part.send("GET /hea"));
  }
  EXPECT_EQ(s.server.ask(get("/health")).status, 200);
  EXPECT_EQ(s.lines(1)[0]["path"], "/health");
}

TEST(AccessLog, WhatIsNoHttpHasALine) {
  LoggingServer s(say("Hello"));
  EXPECT_EQ(s.server.ask("GET /a\x01 HTTP/1.1\r\nHost: x\r\n\r\n").status, 400);
  const json line = s.lines(1)[0];
  EXPECT_EQ(line["method"], "-");
  EXPECT_EQ(line["path"], "-");
  EXPECT_EQ(line["status"], 400);
}

TEST(AccessLog, AnErrorInAStreamIsSaid) {
  LoggingServer s(repeat("ab"));
  s.server.backend().set_round_time(kNanosPerMilli);
  HttpClient client(s.server.port());
  ASSERT_TRUE(client.send(post(kChatPath, chat_body(R"("stream":true)"))));
  ASSERT_TRUE(client.receive_until(R"("content":"b")"));
  s.server.backend().end_all(FinishReason::kError, "a fault");
  ASSERT_TRUE(client.receive_until("[DONE]"));
  const json line = s.lines(1)[0];
  EXPECT_EQ(line["status"], 200) << "its head had gone out";
  EXPECT_EQ(line["end"], "failed");
  EXPECT_EQ(line["error"], "server_error");
}

TEST(AccessLog, AFaultOfOursNamesTheRequest) {
  LoggingServer s(say("Hello"));
  testing::internal::CaptureStderr();
  const std::string body = R"({"messages":[{"role":"user","content":"explode"}]})";
  EXPECT_EQ(s.server.ask(post(kChatPath, body, "X-Request-Id: my-id\r\n")).status, 500);
  EXPECT_EQ(s.lines(1)[0]["error"], "server_error");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("error a request could not be prepared: a fault of ours request_id=my-id key=-\n"));
}

TEST(AccessLog, HostileBytesStayInTheirPlace) {
  LoggingServer s(say("Hello"));
  EXPECT_EQ(s.server.ask(get("/%22%0a%ff", "X-Request-Id: \"}{\\\r\n")).status, 404);
  const json line = s.lines(1)[0];
  EXPECT_EQ(line["request_id"], "\"}{\\");
  EXPECT_EQ(line["path"], "/%22%0a%ff");
}

TEST(AccessLog, ARenamedFileHasASuccessor) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.log";
  auto log = AccessLog::open(path, LogFormat::kText);
  ASSERT_TRUE(log.ok());
  ExchangeRecord record;
  record.status = 201;
  (*log)->add(ended(record));
  for (int i = 0; i < 2000 && read_file(path).empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_EQ(std::rename(path.c_str(), (path + ".1").c_str()), 0);
  ASSERT_TRUE((*log)->reopen().ok());
  record.status = 202;
  (*log)->add(ended(record));
  *log = nullptr;  // writes what is left
  EXPECT_THAT(read_file(path + ".1"), HasSubstr("status=201"));
  EXPECT_THAT(read_file(path), HasSubstr("status=202"));
  EXPECT_THAT(read_file(path), Not(HasSubstr("status=201")));
}

TEST(AccessLog, AFileThatCannotBeOpenedIsNamedAndTheOldOneStays) {
  const auto none = AccessLog::open("/nonexistent/a.log", LogFormat::kText);
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.status().message(), HasSubstr("--access-log /nonexistent/a.log: cannot be written"));
  TempFolder folder;
  const std::string inner = folder.path() + "/inner", path = inner + "/a.log";
  ASSERT_EQ(mkdir(inner.c_str(), 0700), 0);
  auto log = AccessLog::open(path, LogFormat::kText);
  ASSERT_TRUE(log.ok());
  ASSERT_EQ(std::rename(inner.c_str(), (folder.path() + "/moved").c_str()), 0);
  EXPECT_FALSE((*log)->reopen().ok());
  ExchangeRecord record;
  (*log)->add(ended(record));
  *log = nullptr;
  EXPECT_THAT(read_file(folder.path() + "/moved/a.log"), HasSubstr("request_id=req-1"));
}

// A reader that does not read: lines are dropped and counted, and neither add(), reopen() nor the end waits
// for it.
TEST(AccessLog, AReaderThatHangsStopsNothing) {
  TempFolder folder;
  const std::string path = folder.path() + "/fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  auto log = AccessLog::open(path, LogFormat::kText);
  ASSERT_TRUE(log.ok());
  ExchangeRecord record;
  for (int i = 0; i < 20'000; ++i) (*log)->add(ended(record));
  EXPECT_GT((*log)->dropped(), 0u);
  EXPECT_EQ((*log)->metrics()[0].value, static_cast<double>((*log)->dropped()));
  EXPECT_TRUE((*log)->reopen().ok());
  const MonotonicClock clock;
  const Nanos begin = clock.now();
  *log = nullptr;
  EXPECT_LT(clock.now() - begin, 20 * kNanosPerSecond);
  close(reader);
}

// A disk that is full in the middle of a line spoils that line only.
TEST(AccessLog, ALineThatWasCutOffDoesNotJoinTheNext) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.log";
  auto log = AccessLog::open(path, LogFormat::kText);
  ASSERT_TRUE(log.ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = 100;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  ExchangeRecord record;
  (*log)->add(ended(record));
  for (int i = 0; i < 2000 && (*log)->dropped() == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  for (int i = 0; i < 2; ++i) (*log)->add(ended(record));
  *log = nullptr;  // writes what is left
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].size(), 100u);
  EXPECT_THAT(lines[1], ::testing::EndsWith("trace_id=-"));
  EXPECT_EQ(lines[1].substr(24), lines[2].substr(24)) << "but for the time";
}

}  // namespace
}  // namespace kvasir::test
