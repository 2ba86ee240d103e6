// Lines for a file, a pipe or a terminal that may be slow, full or stuck.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"

namespace kvasir {

// Thread-safe. A thread of its own writes, so that add() never waits for a disk or a reader. What finds no
// room meanwhile is dropped, and counted.
class LineWriter {
 public:
  // The descriptor is the caller's, and is open as long as this is.
  explicit LineWriter(int fd);
  // Writes what is left, for at most a second.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // `line` ends in a line break. Throws nothing: a line for which there is no memory is dropped, too.
  void add(std::string line) noexcept;
  // Returns when all lines that were added before are written or dropped, or when `timeout` is over.
  void flush(Nanos timeout);
  // Counts a line that was lost before it came here.
  void count_dropped() noexcept { ++dropped_; }

  uint64_t dropped() const { return dropped_; }  // lines

  static constexpr size_t kMostWaitingBytes = 4 << 20;

 private:
  void run();
  void write_line(std::string_view line);

  const int fd_;
  bool torn_ = false;  // used by the thread: what was written last lacks its end
  std::atomic<uint64_t> dropped_{0};
  std::atomic<Nanos> give_up_at_{0};  // when it stops: how long it still writes; 0: it does not stop

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<std::string> waiting_;  // guarded by mutex_, as what follows
  size_t waiting_bytes_ = 0;
  uint64_t added_ = 0, done_ = 0;  // lines so far; done_: written or dropped
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace kvasir
