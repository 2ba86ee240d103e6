// A histogram with fixed buckets, written by one thread and read by others while it grows.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvasir {

// Thread-safe without locks; a reader may see an observation in the buckets a moment before it is in the sum.
class Histogram {
 public:
  // Upper bounds, ascending; one more bucket counts observations above the last.
  explicit Histogram(std::span<const double> upper_bounds)
      : bounds_(upper_bounds.begin(), upper_bounds.end()),
        counts_(std::make_unique<std::atomic<uint64_t>[]>(bounds_.size() + 1)) {}

  void observe(double value, uint64_t times = 1) {
    size_t i = 0;
    while (i < bounds_.size() && value > bounds_[i]) ++i;
    counts_[i].fetch_add(times, std::memory_order_relaxed);
    sum_.fetch_add(value * static_cast<double>(times), std::memory_order_relaxed);
  }

  std::span<const double> bounds() const { return bounds_; }
  // Observations in bucket i alone (not cumulative). REQUIRES: i <= bounds().size()
  uint64_t count(size_t i) const { return counts_[i].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  const std::vector<double> bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> counts_;
  std::atomic<double> sum_{0};
};

}  // namespace kvasir
