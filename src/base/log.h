// One line per event on standard error. Nothing on the hot path logs.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace kvasir {

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

// Thread-safe; one write per line. Throws nothing, as what follows: a line for which there is no memory is
// lost.
void log_line(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

template <typename... Args>
void log_formatted(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  try {
    log_line(level, fmt::format(format, std::forward<Args>(args)...));
  } catch (const std::bad_alloc&) {
    return;
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
