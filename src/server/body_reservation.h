// A reservation from the memory for bodies that are being received or prepared.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "server/http_counters.h"

namespace kvasir {

// Releases its bytes when it is destroyed, on any thread: the count is atomic, and shared so that it outlives
// every reservation. A reservation itself is used by one thread at a time.
class BodyReservation {
 public:
  // All reservations that share the counters hold at most `limit` bytes.
  BodyReservation(std::shared_ptr<HttpCounters> counters, uint64_t limit)
      : counters_(std::move(counters)), limit_(limit) {}
  ~BodyReservation() { reset(); }
  BodyReservation(BodyReservation&& other) noexcept
      : counters_(other.counters_), limit_(other.limit_), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyReservation& operator=(BodyReservation&&) = delete;

  // Grows to `bytes` in all; never shrinks. False, and nothing changes, if there is no room.
  bool grow_to(uint64_t bytes) {
    if (bytes <= bytes_) return true;
    const uint64_t more = bytes - bytes_;
    if (counters_->body_bytes.fetch_add(more, std::memory_order_relaxed) + more > limit_) {
      counters_->body_bytes.fetch_sub(more, std::memory_order_relaxed);
      return false;
    }
    bytes_ = bytes;
    return true;
  }
  void reset() { counters_->body_bytes.fetch_sub(std::exchange(bytes_, 0), std::memory_order_relaxed); }

 private:
  const std::shared_ptr<HttpCounters> counters_;
  const uint64_t limit_;
  uint64_t bytes_ = 0;
};

}  // namespace kvasir
