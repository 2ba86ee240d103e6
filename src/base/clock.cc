#include "base/clock.h"

#include <ctime>
#include <utility>

#include "base/check.h"

namespace kvasir {

Nanos MonotonicClock::now() const {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<Nanos>(t.tv_sec) * kNanosPerSecond + t.tv_nsec;
}

int64_t unix_time_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return int64_t{t.tv_sec} * kNanosPerSecond + t.tv_nsec;
}

void VirtualClock::advance(Nanos by) {
  KV_CHECK(by >= 0, "by={}", by);
  const Nanos until = now() + by;
  while (next_event() <= until) {
    const auto first = events_.begin();
    if (first->first > now()) now_.store(first->first, std::memory_order_relaxed);
    const std::function<void()> event = std::move(first->second);
    events_.erase(first);
    event();
  }
  now_.store(until, std::memory_order_relaxed);
}

void VirtualClock::at(Nanos time, std::function<void()> event) {
  events_.emplace(time, std::move(event));
}

}  // namespace kvasir
