// How fast the queue moves, and so how long a request will wait in it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace kvasir {

// Little's law on the queue alone: a request behind n others waits n times the mean time between two requests
// that begin to run, measured while the queue is not empty. Used under a lock.
class QueuePace {
 public:
  // A request joined the queue, in which there are so many now.
  void came(Nanos now, uint64_t queued) {
    if (queued == 1) last_ = now;
  }
  // A request left the queue to run. Where several begin in one step their gaps are 0: the mean counts.
  void began(Nanos now) {
    const auto gap = static_cast<double>(std::max<Nanos>(now - last_, 0));
    gap_ns_ =
        seen_ == 0 ? gap : gap_ns_ + (gap - gap_ns_) / static_cast<double>(std::min(seen_ + 1, kMemory));
    ++seen_;
    last_ = std::max(last_, now);
  }

  // How long a request behind so many others waits; 0 until enough have begun to run.
  Nanos wait(uint64_t queued) const {
    return seen_ < kFewest ? 0 : static_cast<Nanos>(gap_ns_ * static_cast<double>(queued));
  }

 private:
  static constexpr uint64_t kMemory = 64;  // gaps that the exponential mean is over
  static constexpr uint64_t kFewest = 16;

  double gap_ns_ = 0;
  uint64_t seen_ = 0;
  Nanos last_ = 0;
};

}  // namespace kvasir
