// One line per event on standard error. Nothing on the hot path logs.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace kvasir {

class LineWriter;

enum class LogLevel : uint8_t { kInfo, kWarning, kError };
const char* name(LogLevel level);

// kText: "2026-05-04T03:02:01.234Z info what happened name=value". kJson: an object with time, level, message
// and the names.
enum class LogFormat : uint8_t { kText, kJson };

// What a program can read of a line: whose it is, numbers. Valid as long as what it views.
struct LogField {
  std::string_view name;  // letters and underscores
  std::variant<std::string_view, uint64_t, double> value;
};

// A line with its line break; `time_ns` since 1970. It is printable, and UTF-8: control characters and bytes
// of other encodings are written \xNN, so that what a client sends can neither forge a line nor spoil one.
std::string format_log_line(LogFormat format, LogLevel level, int64_t time_ns, std::string_view message,
                            std::initializer_list<LogField> fields = {});

// Of all lines of this process from now on. Lines below `least` are left out. By default kText and kInfo.
void set_log(LogFormat format, LogLevel least);
// Whether lines of this level are written.
bool logs(LogLevel level);
LogFormat log_format();

// While one exists, a thread of its own writes the lines: logging waits for no reader of standard error, and
// lines that find no room are dropped and counted. Without it each line is written by the thread that logs
// it. One per process at a time. REQUIRES: no other thread logs when it ends
class LogThread {
 public:
  LogThread();
  ~LogThread();  // writes what is left, for at most a second
  LogThread(const LogThread&) = delete;
  LogThread& operator=(const LogThread&) = delete;

 private:
  const std::unique_ptr<LineWriter> writer_;
};

// Thread-safe. Throws nothing, as what follows: a line for which there is no memory is dropped.
void log_line(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});
// A line that format_log_line() has made, whatever its level.
void write_log_line(std::string line) noexcept;
// Before the process ends in another way than by the end of main(): waits until the lines are written, for at
// most a second.
void flush_log();
// Lines that were not written, of the LogThread that there is and of the time without one.
uint64_t log_lines_dropped();
void count_lost_log_line();

template <typename... Args>
void log_formatted(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  try {
    log_line(level, fmt::format(format, std::forward<Args>(args)...));
  } catch (const std::bad_alloc&) {
    count_lost_log_line();
  }
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_formatted(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_formatted(LogLevel::kWarning, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_formatted(LogLevel::kError, format, std::forward<Args>(args)...);
}

}  // namespace kvasir
