// When a request waited and when it ran, for traces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/clock.h"

namespace kvasir {

// By the engine's clock; 0: that has not happened.
struct RequestTimes {
  struct Stall {
    Nanos begin = 0;
    Nanos end = 0;
  };
  Nanos arrival = 0;
  Nanos first_run = 0;
  Nanos first_token = 0;
  Nanos end = 0;
  // Each from a preemption to the step that runs the request again: the first kMostStalls.
  std::vector<Stall> stalls;
  uint32_t preemptions = 0;

  static constexpr size_t kMostStalls = 64;
};

// Thread-safe. The engine writes it, and the server reads it at any time.
class RequestTimeline {
 public:
  // The engine needs no memory to write it.
  RequestTimeline() { times_.stalls.reserve(RequestTimes::kMostStalls); }

  void arrived(Nanos at) {
    const std::lock_guard lock(mutex_);
    times_.arrival = at;
  }
  // For the first time, or again after a preemption.
  void ran(Nanos at) {
    const std::lock_guard lock(mutex_);
    if (times_.first_run == 0) times_.first_run = at;
    end_stall(at);
  }
  void preempted(Nanos at) {
    const std::lock_guard lock(mutex_);
    ++times_.preemptions;
    if (times_.stalls.size() < RequestTimes::kMostStalls) times_.stalls.push_back({at, 0});
  }
  void began_output(Nanos at) {
    const std::lock_guard lock(mutex_);
    times_.first_token = at;
  }
  void ended(Nanos at) {
    const std::lock_guard lock(mutex_);
    times_.end = at;
    end_stall(at);
  }
  RequestTimes times() const {
    const std::lock_guard lock(mutex_);
    return times_;
  }

 private:
  void end_stall(Nanos at) {
    if (!times_.stalls.empty() && times_.stalls.back().end == 0) times_.stalls.back().end = at;
  }

  mutable std::mutex mutex_;
  RequestTimes times_;  // guarded by mutex_
};

}  // namespace kvasir
