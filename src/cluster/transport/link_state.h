// The bookkeeping of one link between two endpoints, independent of the library that carries it.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace kvasir {

// Time in which this process has run: a process that was stopped or starved must not take its peers for
// dead.
// Not thread-safe.
class RunTime {
 public:
  // At most `stride` counts between two calls.
  explicit RunTime(Nanos stride) : stride_(stride) {}
  // Takes the clock's time, returns the run time.
  Nanos at(Nanos now);

 private:
  const Nanos stride_;
  Nanos last_ = 0;
  Nanos run_ = 0;
  bool began_ = false;
};

// What the sender knows of the far end of a link: how many frames it has taken, and since when it has taken
// none. Not thread-safe.
class SendProgress {
 public:
  // A frame has been handed to the library.
  void sent(Nanos now);
  // The far end reports that it has taken `total` frames. False: this is impossible, the link is broken.
  [[nodiscard]] bool taken(uint64_t total, Nanos now);
  // Something was sent, and nothing of it taken for longer than `deadline`.
  bool overdue(Nanos now, Nanos deadline) const { return sent_ != taken_ && now - since_ > deadline; }
  uint64_t frames_sent() const { return sent_; }

 private:
  uint64_t sent_ = 0;
  uint64_t taken_ = 0;
  Nanos since_ = 0;
};

// The receiver's reports to the sender of a link: the number of frames that it took. Not thread-safe.
class TakenReports {
 public:
  void took() { ++taken_; }
  // The number to report, which then counts as reported; 0: nothing new.
  uint64_t due();

 private:
  uint64_t taken_ = 0;
  uint64_t reported_ = 0;
};

}  // namespace kvasir
