#include "apps/simulate/most_in_time.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvasir {

double most_in_time(std::vector<WindowJob> jobs, size_t slots, double devices) {
  double sum = 0, first = std::numeric_limits<double>::infinity(), last = -first;
  for (const WindowJob& j : jobs) {
    if (std::isinf(j.to_s)) continue;
    first = std::min(first, j.from_s);
    last = std::max(last, j.to_s);
  }
  const double slot_s = (last - first) / static_cast<double>(slots);
  std::sort(jobs.begin(), jobs.end(),
            [](const WindowJob& a, const WindowJob& b) { return a.device_s < b.device_s; });
  // room[p * (slots + 1) + q]: what is left of slots [p, q) for jobs whose windows lie in them.
  std::vector<double> room((slots + 1) * (slots + 1));
  for (size_t p = 0; p <= slots; ++p) {
    for (size_t q = p; q <= slots; ++q) {
      room[p * (slots + 1) + q] = static_cast<double>(q - p) * slot_s * devices;
    }
  }
  for (const WindowJob& j : jobs) {
    if (std::isinf(j.device_s)) continue;
    if (std::isinf(j.to_s) || j.device_s <= 0 || slot_s <= 0) {
      sum += 1;
      continue;
    }
    const auto slot_of = [&](double t) { return (t - first) / slot_s; };
    const auto u = std::min(slots - 1, static_cast<size_t>(std::floor(slot_of(j.from_s))));
    const auto v = std::clamp(static_cast<size_t>(std::ceil(slot_of(j.to_s))), u + 1, slots);
    double most = j.device_s;
    for (size_t p = 0; p <= u; ++p) {
      for (size_t q = v; q <= slots; ++q) most = std::min(most, room[p * (slots + 1) + q]);
    }
    if (most <= 0) continue;
    for (size_t p = 0; p <= u; ++p) {
      for (size_t q = v; q <= slots; ++q) room[p * (slots + 1) + q] -= most;
    }
    sum += most / j.device_s;
  }
  return sum;
}

}  // namespace kvasir
