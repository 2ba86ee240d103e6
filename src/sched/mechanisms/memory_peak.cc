#include "sched/mechanisms/memory_peak.h"

#include <algorithm>
#include <utility>

namespace kvasir {

MemoryPeak::MemoryPeak(std::vector<Request> requests) : requests_(std::move(requests)) {
  std::sort(requests_.begin(), requests_.end(),
            [](const Request& a, const Request& b) { return a.rest > b.rest; });
}

void MemoryPeak::add(double owned, double rest) {
  const auto at = std::upper_bound(requests_.begin(), requests_.end(), rest,
                                   [](double value, const Request& r) { return value > r.rest; });
  requests_.insert(at, {owned, rest});
}

double MemoryPeak::with(double owned, double rest) const {
  double peak = 0, sum = 0, count = 0;
  bool added = false;
  const auto end_at = [&](double tokens, double steps) {
    sum += tokens;
    count += 1;
    peak = std::max(peak, sum + count * steps);
  };
  for (const Request& r : requests_) {
    if (!added && r.rest <= rest) {
      end_at(owned, rest);
      added = true;
    }
    end_at(r.owned, r.rest);
  }
  if (!added) end_at(owned, rest);
  return peak;
}

size_t MemoryPeak::ending_within(double steps) const {
  const auto first = std::partition_point(requests_.begin(), requests_.end(),
                                          [&](const Request& r) { return r.rest > steps; });
  return static_cast<size_t>(requests_.end() - first);
}

}  // namespace kvasir
