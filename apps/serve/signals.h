// Waiting for SIGTERM and SIGINT.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"

namespace kvasir {

// Blocks SIGTERM and SIGINT in the calling thread and in the threads that it starts later, and receives them
// on a thread of its own. Before ready() the first signal ends the process at once, after it the third one:
// with a line in the log, and 128 plus the signal's number as the exit code. One per process, made before any
// other thread. With `on_hangup` SIGHUP ends nothing, but calls that on another thread, so that a call that
// hangs holds up no other signal.
class Signals {
 public:
  explicit Signals(std::function<void()> on_hangup = {});
  // A call that still runs after a second is left behind, and may go on: `on_hangup` owns what it uses.
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  void ready();
  // Until the first signal, or for `period` at most. False: none came.
  bool wait_for(std::optional<Nanos> period);
  int count() const;

 private:
  struct Hangups;

  void run();

  const std::shared_ptr<Hangups> hangups_;  // null: SIGHUP is not taken
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false;     // guarded by mutex_
  bool stopping_ = false;  // guarded by mutex_
  int count_ = 0;          // guarded by mutex_
  std::thread thread_;
  std::thread hangup_thread_;
};

}  // namespace kvasir
