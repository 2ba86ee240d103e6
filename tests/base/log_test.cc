// Lines of the log: each is one line, printable, and in JSON one object, whatever a client has sent.
#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>

#include "base/random.h"
#include "base/untrusted_text.h"

namespace kvasir {
namespace {

using nlohmann::json;
using namespace std::string_literals;

constexpr int64_t kTime = 1'777'863'721'234'567'890;  // 2026-05-04 03:02:01.234 UTC

std::string text_line(std::string_view message, std::initializer_list<LogField> fields = {}) {
  return format_log_line(LogFormat::kText, LogLevel::kInfo, kTime, message, fields);
}
std::string json_line(std::string_view message, std::initializer_list<LogField> fields = {}) {
  return format_log_line(LogFormat::kJson, LogLevel::kWarning, kTime, message, fields);
}

TEST(Log, ALineOfText) {
  EXPECT_EQ(text_line("a thing happened"), "2026-05-04T03:02:01.234Z info a thing happened\n");
  EXPECT_EQ(text_line("request", {{"id", "req-1"}, {"tokens", uint64_t{7}}, {"ms", 1.5}, {"key", "my key"}}),
            "2026-05-04T03:02:01.234Z info request id=req-1 tokens=7 ms=1.500 key=\"my key\"\n");
}

TEST(Log, AValueThatIsNoWordIsQuoted) {
  EXPECT_EQ(text_line("m", {{"a", ""}, {"b", "x=1"}, {"c", "say \"hi\""}, {"d", "back\\slash"}}),
            "2026-05-04T03:02:01.234Z info m a=\"\" b=\"x=1\" c=\"say \\\"hi\\\"\" d=\"back\\\\slash\"\n");
}

TEST(Log, ALineOfJson) {
  EXPECT_EQ(json_line("a thing", {{"id", "req-1"}, {"tokens", uint64_t{7}}, {"ms", 1.5}}),
            R"({"time":"2026-05-04T03:02:01.234Z","level":"warning","message":"a thing","id":"req-1",)"
            "\"tokens\":7,\"ms\":1.500}\n");
}

TEST(Log, NothingForgesALine) {
  const std::string hostile =
      "one\ntwo\r\0\x1b[31m\x7f\xff\xc2\x9b{\"level\":\"error\"}"
      "\xed\xa0\x80 gr\xc3\xbc\xc3\x9f"
      "e"s;
  for (const std::string& line :
       {text_line(hostile, {{"v", hostile}}), json_line(hostile, {{"v", hostile}})}) {
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    for (const char c : line.substr(0, line.size() - 1)) {
      EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) << line;
    }
  }
  EXPECT_NE(text_line("a\nb\xff").find("a\\x0ab\\xff"), std::string::npos);
  EXPECT_NE(text_line("gr\xc3\xbc\xc3\x9f").find("gr\xc3\xbc\xc3\x9f"), std::string::npos);
  const json parsed = json::parse(json_line("a\nb\xff\"\\"));
  EXPECT_EQ(parsed["message"], "a\\x0ab\\xff\"\\");
}

// Any bytes, in a message and in a field: valid UTF-8 and one JSON object with the same members.
TEST(Log, JsonOfAnyBytes) {
  Random random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(random.below(12), ' ');
    // Half of them are such as UTF-8 is made of.
    constexpr unsigned char kLikely[] = {0x00, 0x0a, 0x22, 0x5c, 0x7f, 0x80, 0x9f, 0xa0, 0xbf, 0xc0,
                                         0xc2, 0xe0, 0xed, 0xef, 0xf0, 0xf4, 0xf5, 0xff, 0x8f, 0x90};
    for (char& c : bytes) {
      c = static_cast<char>(random.below(2) == 0 ? random.below(256) : kLikely[random.below(20)]);
    }
    const std::string line = json_line(bytes, {{"field", bytes}, {"last", uint64_t{1}}});
    ASSERT_EQ(line.find('\n'), line.size() - 1);
    const json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);  // refuses what is not UTF-8
    ASSERT_TRUE(parsed.is_object()) << line;
    ASSERT_EQ(parsed.size(), 5u);
    ASSERT_EQ(parsed["message"], parsed["field"]);
  }
}

TEST(Log, ANumberThatJsonHasNot) {
  EXPECT_EQ(json::parse(json_line("m", {{"x", std::numeric_limits<double>::infinity()}}))["x"], 0.0);
  EXPECT_EQ(json::parse(json_line("m", {{"x", UINT64_MAX}}))["x"], UINT64_MAX);
}

TEST(Log, ALevelLeavesLowerOnesOut) {
  testing::internal::CaptureStderr();
  set_log(LogFormat::kJson, LogLevel::kWarning);
  log_info("not this");
  log_warning("but {}", "this");
  set_log(LogFormat::kText, LogLevel::kInfo);
  log_info("and this");
  const std::string written = testing::internal::GetCapturedStderr();
  EXPECT_EQ(written.find("not this"), std::string::npos);
  EXPECT_NE(written.find("\"message\":\"but this\"}\n"), std::string::npos);
  EXPECT_NE(written.find(" info and this\n"), std::string::npos);
}

// Standard error as a pipe that is full, until it is read.
class FullStderr {
 public:
  FullStderr() : before_(dup(STDERR_FILENO)) {
    EXPECT_EQ(pipe2(ends_, O_CLOEXEC | O_NONBLOCK), 0);
    std::string filler(4096, '.');
    filler.back() = '\n';
    while (write(ends_[1], filler.data(), filler.size()) > 0) {
    }
    for (const int end : ends_) fcntl(end, F_SETFL, 0);
    dup2(ends_[1], STDERR_FILENO);
    close(ends_[1]);
  }
  ~FullStderr() { close(ends_[0]); }
  FullStderr(const FullStderr&) = delete;
  FullStderr& operator=(const FullStderr&) = delete;

  // Until restore() is called.
  std::string read_all() const {
    std::string all;
    char bytes[65536];
    for (ssize_t n = 0; (n = read(ends_[0], bytes, sizeof(bytes))) > 0;) {
      all.append(bytes, static_cast<size_t>(n));
    }
    return all;
  }
  void restore() const {
    dup2(before_, STDERR_FILENO);
    close(before_);
  }

 private:
  int ends_[2] = {-1, -1};
  const int before_;
};

// Threads that log go on. The lines that wait are bounded, and come whole when the reader reads on.
TEST(LogThread, AFullPipeHoldsNoThreadUp) {
  constexpr uint64_t kLines = 30'000;
  const std::string padding(200, 'x');
  const FullStderr stuck;
  std::string written;
  std::thread reader;
  uint64_t dropped = 0;
  {
    const LogThread log_thread;
    for (uint64_t i = 0; i < kLines; ++i) log_info("line {} {}", i, padding);
    dropped = log_lines_dropped();
    reader = std::thread([&] { written = stuck.read_all(); });
    // Room for the last line.
    for (int i = 0; i < 60; ++i) flush_log();
    log_info("the end");
  }
  stuck.restore();
  reader.join();
  uint64_t whole = 0;
  std::istringstream lines(written);
  std::string line, last;
  while (std::getline(lines, line)) {
    whole += line.find(" info line ") != std::string::npos && line.ends_with(padding);
    last = line;
  }
  EXPECT_GT(dropped, kLines / 4);
  EXPECT_EQ(whole + dropped, kLines);
  EXPECT_TRUE(last.ends_with(" info the end")) << last;
}

// A line that is longer than a pipe takes at once waits for its reader, and no thread that logs waits for it.
TEST(LogThread, ALongLineComesWhole) {
  const FullStderr stuck;
  const std::string text(200'000, 'y');
  std::string written;
  std::thread reader;
  {
    const LogThread log_thread;
    log_info("{}", text);
    reader = std::thread([&] { written = stuck.read_all(); });
    for (int i = 0; i < 60; ++i) flush_log();
  }
  stuck.restore();
  reader.join();
  EXPECT_NE(written.find(" info " + text + "\n"), std::string::npos);
}

TEST(LogThread, EndsThoughNothingIsRead) {
  const FullStderr stuck;
  {
    const LogThread log_thread;
    log_info("this is lost");
  }
  stuck.restore();
  EXPECT_EQ(stuck.read_all().find("this is lost"), std::string::npos);
}

TEST(Utf8, TheBytesOfACharacter) {
  EXPECT_EQ(utf8_bytes(""), 0u);
  EXPECT_EQ(utf8_bytes("a\xc3\xbc"), 1u);
  EXPECT_EQ(utf8_bytes("\xc3\xbc"), 2u);
  EXPECT_EQ(utf8_bytes("\xe2\x82\xac"), 3u);
  EXPECT_EQ(utf8_bytes("\xf0\x9f\x90\xa6"), 4u);
  for (const char* wrong : {"\x80", "\xc0\x80", "\xc1\xbf", "\xc3", "\xc3(", "\xe0\x80\x80", "\xed\xa0\x80",
                            "\xe2\x82", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(utf8_bytes(wrong), 0u) << wrong;
  }
}

}  // namespace
}  // namespace kvasir
