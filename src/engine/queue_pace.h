// Measures how fast the queue moves, and predicts how long a request will wait in it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace kvasir {

// Little's law for the queue: a request behind n others waits n times the mean gap between requests that
// begin to run, measured while the queue is not empty. Used under a lock.
class QueuePace {
 public:
  // A request joined the queue, which has `queued` requests now.
  void came(Nanos now, uint64_t queued) {
    if (queued == 1) last_ = now;
  }
  // A request left the queue to run. If several begin in one step, the gaps between them are 0.
  void began(Nanos now) {
    const auto gap = static_cast<double>(std::max<Nanos>(now - last_, 0));
    gap_ns_ =
        seen_ == 0 ? gap : gap_ns_ + (gap - gap_ns_) / static_cast<double>(std::min(seen_ + 1, kMemory));
    ++seen_;
    last_ = std::max(last_, now);
  }

  // How long a request behind `queued` others waits; 0 until enough have begun to run.
  Nanos wait(uint64_t queued) const {
    return seen_ < kFewest ? 0 : static_cast<Nanos>(gap_ns_ * static_cast<double>(queued));
  }

 private:
  static constexpr uint64_t kMemory = 64;  // gaps in the exponential mean
  static constexpr uint64_t kFewest = 16;

  double gap_ns_ = 0;
  uint64_t seen_ = 0;
  Nanos last_ = 0;
};

}  // namespace kvasir
