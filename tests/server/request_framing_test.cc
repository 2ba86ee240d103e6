// How requests are told apart: a corpus of those with which servers and proxies have disagreed.
//
// request_framing.json has the cases: what is sent over one connection, and the statuses of all answers to
// it. In `send` a character is a byte, and {N} stands for N letters. Unless the family is "taken" or
// "semantics", the connection is closed behind the last answer, and /smuggled is never asked for.
// `headers` are of the first answer behind a 100; an empty value: the answer has no such header. A guarded
// case goes to a server with a key. tests/e2e/proxy_test.py sends all but "semantics" through a proxy, and
// tests/http_table_test.py makes the table of docs/http.md of the cases and of http_rules.json.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "server/framing_check.h"
#include "server/request_head.h"
#include "server/running_server.h"

namespace kvasir::test {
namespace {

struct FramingCase {
  std::string name;
  bool stays_open;
  bool guarded;
  std::string send;
  std::vector<int> answers;
  std::map<std::string, std::string> headers;
};

// The file has UTF-8; a code point below 256 is a byte.
std::string bytes_of(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0xc0) {
      out += static_cast<char>(((c & 0x1f) << 6) | (static_cast<unsigned char>(text[++i]) & 0x3f));
    } else if (c == '{' && std::isdigit(static_cast<unsigned char>(text[i + 1]))) {
      const size_t end = text.find('}', i);
      out.append(std::stoul(text.substr(i + 1, end - i - 1)), 'a');
      i = end;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::vector<FramingCase> framing_cases() {
  std::ifstream in(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/request_framing.json");
  std::vector<FramingCase> cases;
  for (const auto& c : nlohmann::json::parse(in)) {
    const std::string family = c["family"];
    cases.push_back({family + ": " + c["name"].get<std::string>(), family == "taken" || family == "semantics",
                     c.value("guarded", false), bytes_of(c["send"].get<std::string>()),
                     c["answers"].get<std::vector<int>>(),
                     c.value("headers", std::map<std::string, std::string>())});
  }
  return cases;
}

void check_headers(const FramingCase& c, const HttpAnswer& answer) {
  EXPECT_TRUE(answer.headers.contains("date")) << "RFC 9110, section 6.6.1";
  for (const auto& [name, value] : c.headers) {
    std::string lower = name;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char b) { return std::tolower(b); });
    const auto found = answer.headers.find(lower);
    EXPECT_EQ(found == answer.headers.end() ? "" : found->second, value) << name;
  }
}

TEST(RequestFraming, EveryCaseOfTheCorpusGetsItsAnswers) {
  RunningServer open(say("x"));
  ServerOptions options = test_options();
  options.api_keys = {"secret"};
  options.browsers.cors_origins = {"http://a.example"};
  RunningServer guarded(say("x"), options);
  const std::vector<FramingCase> cases = framing_cases();
  ASSERT_GT(cases.size(), 150u);
  for (const FramingCase& c : cases) {
    SCOPED_TRACE(c.name);
    HttpClient client((c.guarded ? guarded : open).port());
    client.send(c.send);
    std::string last;
    bool first = true;
    for (const int status : c.answers) {
      const auto answer = client.receive(first && c.send.starts_with("HEAD"));
      ASSERT_TRUE(answer);
      EXPECT_EQ(answer->status, status) << answer->body;
      EXPECT_EQ(answer->body.find("smuggled"), std::string::npos);
      if (status == 100) continue;
      if (std::exchange(first, false)) check_headers(c, *answer);
      last = answer->headers.at("connection");
    }
    if (!c.stays_open) {
      EXPECT_EQ(last, "close");
    }
    if (last == "close") {
      EXPECT_EQ(client.receive_all(), "");
    }
  }
}

TEST(RequestFraming, IsTheSameInPiecesAndForAnotherParserThatTakesIt) {
  Random random(11);
  for (const FramingCase& c : framing_cases()) {
    check_framing(c.send);
    if (c.send.size() > 2000) continue;
    for (int i = 0; i < 20; ++i) {
      std::string changed = c.send;
      const size_t at = random.below(changed.size());
      constexpr std::string_view kBytes("\r\n\t :;,0a\0/\x80", 12);
      const char byte = kBytes[random.below(kBytes.size())];
      if (random.below(2) == 0) {
        changed[at] = byte;
      } else {
        changed.insert(at, 1, byte);
      }
      check_framing(changed);
    }
  }
}

TEST(RequestHead, HostsAndTargets) {
  EXPECT_EQ(host_of("a.b:80"), "a.b");
  EXPECT_EQ(host_of("a.b"), "a.b");
  EXPECT_EQ(host_of("[::1]:80"), "[::1]");
  EXPECT_EQ(host_of("[::1]"), "[::1]");
  EXPECT_EQ(host_of("[::1]x"), "[::1]x");
  const auto head = read_head("GET http://b:1/c?d HTTP/1.1\r\nHost: a\r\nX: 1\r\nx: 2\r\n\r\n");
  ASSERT_TRUE(std::holds_alternative<RequestHead>(head));
  const auto& taken = std::get<RequestHead>(head);
  EXPECT_EQ(taken.target, "/c?d");
  EXPECT_EQ(taken.authority, "b:1") << "that of the target counts";
  EXPECT_EQ(taken.header("x"), "1");
  EXPECT_FALSE(taken.content_length);
  EXPECT_FALSE(taken.chunked);
}

TEST(RequestHead, ALongHeadIsBoundedWhetherOrNotItEnds) {
  ServerOptions options = test_options();
  options.limits.max_header_bytes = 200;
  RunningServer server(say("x"), options);
  const std::string shorter = get("/health", "X: " + std::string(100, 'a') + "\r\n");
  EXPECT_EQ(server.ask(shorter + shorter).status, 200) << "what follows does not count";
  EXPECT_EQ(server.ask(get("/health", "X: " + std::string(200, 'a') + "\r\n")).status, 431);
  EXPECT_EQ(server.ask("GET /" + std::string(200, 'a')).status, 414) << "RFC 9112, section 3";
  EXPECT_EQ(server.ask("\r\nGET /" + std::string(200, 'a') + " HTTP/1.1\r\n\r\n").status, 414);
  EXPECT_NE(server.ask(get("/metrics"))
                .body.find("http_requests_total{model_name=\"test-model\",status=\"414\"} 2"),
            std::string::npos);
}

}  // namespace
}  // namespace kvasir::test
