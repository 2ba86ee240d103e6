// A line for each request that has ended.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "server/exchange_record.h"
#include "server/metrics_text.h"

namespace kvasir {

// The line has no text of a prompt or an answer, no key and no query. `time_ns`: of the end, since 1970.
std::string access_line(LogFormat format, int64_t time_ns, const EndedRequest& request);

// Thread-safe. A thread of its own writes: a disk or a reader of standard error that is slow delays no
// request. What finds no room meanwhile is dropped, and counted.
class AccessLog {
 public:
  // `path`: a file, which is appended to and made if need be; "-": standard error, where it follows
  // --log-level. kIo: one line that names the file.
  static Result<std::unique_ptr<AccessLog>> open(std::string path, LogFormat format);
  // Writes what is left, for at most a second.
  ~AccessLog();

  void add(const EndedRequest& request);
  // Opens the path again, so that a file that was renamed has a successor. On an error the old one stays.
  Status reopen();

  uint64_t dropped() const { return dropped_; }  // lines
  std::vector<OutsideMetric> metrics() const;

 private:
  AccessLog(std::string path, LogFormat format, int fd);
  bool is_stderr() const { return path_ == "-"; }
  void run();
  bool write_line(const std::string& line);

  static constexpr size_t kMostWaiting = 16 * 1024;  // lines

  const std::string path_;
  const LogFormat format_;
  const int fd_;
  bool torn_ = false;  // used by the thread: what was written last lacks its end
  std::atomic<uint64_t> dropped_{0};
  std::atomic<Nanos> give_up_at_{0};  // when it stops: how long it still writes; 0: it does not stop

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::string> waiting_;  // guarded by mutex_
  bool stopping_ = false;            // guarded by mutex_

  std::thread thread_;
};

}  // namespace kvasir
