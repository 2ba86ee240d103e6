// One line per event on standard error. Nothing on the hot path logs.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace kvasir {

enum class LogLevel { kInfo, kWarning, kError };

// Thread-safe; one write per line. Control characters in the line are escaped, so that what a client
// sends cannot forge a line.
void log_line(LogLevel level, std::string_view line);

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace kvasir
