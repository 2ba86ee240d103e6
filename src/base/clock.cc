#include "base/clock.h"

#include <ctime>

#include "base/check.h"

namespace kvasir {

Nanos MonotonicClock::now() const {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<Nanos>(t.tv_sec) * kNanosPerSecond + t.tv_nsec;
}

void VirtualClock::advance(Nanos by) {
  KV_CHECK(by >= 0, "by={}", by);
  now_.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace kvasir
