// A line for each request that has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/line_writer.h"
#include "base/log.h"
#include "base/status.h"
#include "server/exchange_record.h"
#include "server/metrics_text.h"

namespace kvasir {

// The line has no text of a prompt or an answer, no key and no query. `time_ns`: of the end, since 1970.
std::string access_line(LogFormat format, int64_t time_ns, const EndedRequest& request);

// Thread-safe. A thread of its own writes a file: a disk that is slow delays no request. Lines for standard
// error are lines of the log.
class AccessLog {
 public:
  // `path`: a file, which is appended to and made if need be; "-": standard error, where it follows
  // --log-level. kIo: one line that names the file.
  static Result<std::unique_ptr<AccessLog>> open(std::string path, LogFormat format);
  // Writes what is left, for at most a second.
  ~AccessLog();

  // Throws nothing. What finds no room or no memory is dropped, and counted.
  void add(const EndedRequest& request) noexcept;
  // Opens the path again, so that a file that was renamed has a successor. On an error the old one stays.
  Status reopen();

  uint64_t dropped() const;  // lines; of standard error: of the log
  std::vector<OutsideMetric> metrics() const;

 private:
  AccessLog(std::string path, LogFormat format, int fd);

  const std::string path_;
  const LogFormat format_;
  const int fd_;
  std::optional<LineWriter> file_;  // nothing: standard error
};

}  // namespace kvasir
