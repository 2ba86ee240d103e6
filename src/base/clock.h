// Time as the engine and the policies see it. They cannot tell whether it is real.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>

namespace kvasir {

// Nanoseconds since an arbitrary start; never goes back.
using Nanos = int64_t;

constexpr Nanos kNanosPerMicro = 1'000;
constexpr Nanos kNanosPerMilli = 1'000'000;
constexpr Nanos kNanosPerSecond = 1'000'000'000;
constexpr double to_seconds(Nanos t) {
  return static_cast<double>(t) * 1e-9;
}
constexpr double to_millis(Nanos t) {
  return static_cast<double>(t) * 1e-6;
}
constexpr Nanos from_seconds(double s) {
  return static_cast<Nanos>(s * 1e9);
}

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanos now() const = 0;
};

class MonotonicClock final : public Clock {
 public:
  Nanos now() const override;
};

// Since 1970, by the clock of the world, which may be set.
int64_t unix_time_ns();

// Stands still until it is moved, by the simulated executor or link, or by a test. now() from any thread, the
// rest from one.
class VirtualClock final : public Clock {
 public:
  Nanos now() const override { return now_.load(std::memory_order_relaxed); }
  // Runs the events that are due on the way, each at its time. REQUIRES: by >= 0; not called by an event
  void advance(Nanos by);
  // Runs `event` when the clock reaches `time`, or at the next advance() if that is past. Events of one time
  // run in the order of the calls.
  void at(Nanos time, std::function<void()> event);
  // The time of the next event; INT64_MAX: there is none.
  Nanos next_event() const { return events_.empty() ? INT64_MAX : events_.begin()->first; }

 private:
  std::atomic<Nanos> now_{0};
  std::multimap<Nanos, std::function<void()>> events_;
};

}  // namespace kvasir
