// Times a phase of the loop.
#pragma once

#include <atomic>

#include "base/clock.h"

namespace kvasir {

// Adds the seconds of its lifetime to a counter.
class PhaseTimer {
 public:
  PhaseTimer(const Clock& clock, std::atomic<double>& seconds)
      : clock_(clock), seconds_(seconds), start_(clock.now()) {}
  ~PhaseTimer() { seconds_.fetch_add(to_seconds(clock_.now() - start_), std::memory_order_relaxed); }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  const Clock& clock_;
  std::atomic<double>& seconds_;
  const Nanos start_;
};

}  // namespace kvasir
