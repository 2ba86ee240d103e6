// How fast the queue moves, and so how long it is in time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace kvasir {

// Little's law on the queue alone: who comes behind n others waits n times the mean time between two that
// begin to run, measured while someone waits. Used under a lock.
class QueuePace {
 public:
  // One came, or one left to run, or without having run; so many are queued now.
  void came(Nanos now, uint64_t queued) {
    if (queued == 1) last_ = now;
  }
  void began(Nanos now) {
    // Several begin in one step: their gaps are 0, and the mean is what counts.
    const auto gap = static_cast<double>(std::max<Nanos>(now - last_, 0));
    gap_ns_ =
        seen_ == 0 ? gap : gap_ns_ + (gap - gap_ns_) / static_cast<double>(std::min(seen_ + 1, kMemory));
    ++seen_;
    last_ = std::max(last_, now);
  }

  // That one who comes behind so many waits; 0 until enough have been seen.
  Nanos wait(uint64_t queued) const {
    return seen_ < kFewest ? 0 : static_cast<Nanos>(gap_ns_ * static_cast<double>(queued));
  }

 private:
  static constexpr uint64_t kMemory = 64;  // of the exponential mean
  static constexpr uint64_t kFewest = 16;

  double gap_ns_ = 0;
  uint64_t seen_ = 0;
  Nanos last_ = 0;
};

}  // namespace kvasir
