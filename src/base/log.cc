#include "base/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <ctime>
#include <iterator>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/line_writer.h"
#include "base/untrusted_text.h"

namespace kvasir {
namespace {

// Standard error is one for the process, and so is how its lines are written.
std::atomic<LogFormat> process_format{LogFormat::kText};
std::atomic<LogLevel> process_level{LogLevel::kInfo};
std::atomic<LineWriter*> process_writer{nullptr};
std::atomic<uint64_t> lost_lines{0};  // without a writer, or before they came to it

constexpr Nanos kFlushLogTimeout = kNanosPerSecond;

std::string utc_time(int64_t time_ns) {
  const time_t seconds = time_ns / kNanosPerSecond;
  tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                     time_ns % kNanosPerSecond / kNanosPerMilli);
}

// What is printable stays, but for the characters of `escaped`, before which a backslash comes.
void append_printable(std::string& out, std::string_view text, std::string_view escaped,
                      std::string_view backslash) {
  while (!text.empty()) {
    const size_t bytes = utf8_bytes(text);
    const auto c = static_cast<unsigned char>(text.front());
    // C2 80 to C2 9F are control characters, too.
    const bool control =
        c < 0x20 || c == 0x7f || (bytes == 2 && c == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0);
    if (bytes == 0 || control) {
      for (size_t i = 0; i < std::max<size_t>(1, bytes); ++i) {
        fmt::format_to(std::back_inserter(out), "{}x{:02x}", backslash, static_cast<unsigned char>(text[i]));
      }
    } else {
      if (escaped.find(text.front()) != std::string_view::npos) out += '\\';
      out += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<size_t>(1, bytes));
  }
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  append_printable(out, text, "\"\\", "\\\\");
  out += '"';
}

// Quoted where it is no plain word.
void append_text_value(std::string& out, std::string_view text) {
  bool plain = !text.empty();
  for (const char c : text) plain = plain && c > ' ' && c < 0x7f && c != '"' && c != '=' && c != '\\';
  if (plain) {
    out += text;
    return;
  }
  out += '"';
  append_printable(out, text, "\"\\", "\\");
  out += '"';
}

void append_field(std::string& out, LogFormat format, const LogField& field) {
  const bool json = format == LogFormat::kJson;
  out += json ? ",\"" : " ";
  out += field.name;
  out += json ? "\":" : "=";
  if (const auto* text = std::get_if<std::string_view>(&field.value)) {
    return json ? append_json_string(out, *text) : append_text_value(out, *text);
  }
  if (const auto* number = std::get_if<double>(&field.value)) {
    // JSON has no infinity.
    fmt::format_to(std::back_inserter(out), "{:.3f}", std::isfinite(*number) ? *number : 0.0);
  } else {
    fmt::format_to(std::back_inserter(out), "{}", std::get<uint64_t>(field.value));
  }
}

}  // namespace

const char* name(LogLevel level) {
  return level == LogLevel::kInfo ? "info" : level == LogLevel::kWarning ? "warning" : "error";
}

std::string format_log_line(LogFormat format, LogLevel level, int64_t time_ns, std::string_view message,
                            std::initializer_list<LogField> fields) {
  std::string out;
  if (format == LogFormat::kJson) {
    out = fmt::format(R"({{"time":"{}","level":"{}","message":)", utc_time(time_ns), name(level));
    append_json_string(out, message);
  } else {
    out = fmt::format("{} {} ", utc_time(time_ns), name(level));
    append_printable(out, message, "", "\\");
  }
  for (const LogField& field : fields) append_field(out, format, field);
  out += format == LogFormat::kJson ? "}\n" : "\n";
  return out;
}

void set_log(LogFormat format, LogLevel least) {
  process_format = format;
  process_level = least;
}
bool logs(LogLevel level) {
  return level >= process_level.load(std::memory_order_relaxed);
}
LogFormat log_format() {
  return process_format.load(std::memory_order_relaxed);
}

LogThread::LogThread() : writer_(std::make_unique<LineWriter>(STDERR_FILENO)) {
  process_writer = writer_.get();
}

LogThread::~LogThread() {
  process_writer = nullptr;
}

void log_line(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (!logs(level)) return;
  try {
    write_log_line(format_log_line(log_format(), level, unix_time_ns(), message, fields));
  } catch (const std::bad_alloc&) {
    count_lost_log_line();
  }
}

void write_log_line(std::string line) noexcept {
  if (LineWriter* const writer = process_writer) return writer->add(std::move(line));
  if (write(STDERR_FILENO, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    count_lost_log_line();
  }
}

void flush_log() {
  if (LineWriter* const writer = process_writer) writer->flush(kFlushLogTimeout);
}

uint64_t log_lines_dropped() {
  const LineWriter* const writer = process_writer;
  return lost_lines + (writer == nullptr ? 0 : writer->dropped());
}

void count_lost_log_line() {
  ++lost_lines;
}

}  // namespace kvasir
