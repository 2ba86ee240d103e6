#include "base/log.h"

#include <unistd.h>

#include <ctime>
#include <string>

namespace kvasir {

void log_line(LogLevel level, std::string_view line) {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  tm utc{};
  gmtime_r(&t.tv_sec, &utc);
  const char* name = level == LogLevel::kInfo ? "info" : level == LogLevel::kWarning ? "warning" : "error";
  std::string out =
      fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z {} ", utc.tm_year + 1900, utc.tm_mon + 1,
                  utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, t.tv_nsec / 1'000'000, name);
  for (char c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  out += '\n';
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, out.data(), out.size());
}

}  // namespace kvasir
