// Time as the engine and the policies see it. They cannot tell whether it is real.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvasir {

// Nanoseconds since an arbitrary start; never goes back.
using Nanos = int64_t;

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

// Stands still until someone moves it: the simulated executor, or a test.
class VirtualClock final : public Clock {
 public:
  Nanos now() const override { return now_.load(std::memory_order_relaxed); }
  // REQUIRES: by >= 0
  void advance(Nanos by);

 private:
  std::atomic<Nanos> now_{0};
};

}  // namespace kvasir
