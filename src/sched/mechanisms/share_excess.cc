#include "sched/mechanisms/share_excess.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace kvasir {
namespace {

std::vector<uint32_t> all_wanted(const std::vector<MemoryDemand>& demands) {
  std::vector<uint32_t> out;
  out.reserve(demands.size());
  for (const MemoryDemand& d : demands) out.push_back(d.wanted);
  return out;
}

}  // namespace

std::vector<uint32_t> share_excess(const std::vector<MemoryDemand>& demands, uint64_t available) {
  std::vector<uint32_t> given = all_wanted(demands);
  if (std::accumulate(given.begin(), given.end(), uint64_t{0}) <= available) return given;
  // In each round a demand that would fall below its least is set to it, and the others bear the rest.
  std::vector<size_t> open(demands.size());
  std::iota(open.begin(), open.end(), size_t{0});
  uint64_t fixed = 0;
  for (bool again = true; again && !open.empty();) {
    double weights = 0;
    uint64_t open_wanted = 0;
    for (size_t i : open) {
      weights += demands[i].weight;
      open_wanted += demands[i].wanted;
    }
    const double left = available > fixed ? static_cast<double>(available - fixed) : 0;
    const double excess = std::max(0.0, static_cast<double>(open_wanted) - left);
    const double alike = 1 / static_cast<double>(open.size());
    size_t kept = 0;
    for (size_t i : open) {
      const MemoryDemand& d = demands[i];
      const double share = weights > 0 ? d.weight / weights : alike;
      const double amount = std::floor(d.wanted - excess * share);
      if (amount < d.least) {
        given[i] = d.least;
        fixed += d.least;
      } else {
        given[i] = static_cast<uint32_t>(amount);
        open[kept++] = i;
      }
    }
    again = kept < open.size();
    open.resize(kept);
  }
  return given;
}

std::vector<uint32_t> share_by_weight(const std::vector<MemoryDemand>& demands, uint64_t available) {
  std::vector<uint32_t> given = all_wanted(demands);
  if (std::accumulate(given.begin(), given.end(), uint64_t{0}) <= available) return given;
  // In each round the demands that break their bounds on the side that outweighs the other keep the bound,
  // and the others share what is left.
  std::vector<size_t> open(demands.size());
  std::iota(open.begin(), open.end(), size_t{0});
  uint64_t fixed = 0;
  while (!open.empty()) {
    double weights = 0;
    for (size_t i : open) weights += demands[i].weight;
    const double left = available > fixed ? static_cast<double>(available - fixed) : 0;
    const double alike = 1 / static_cast<double>(open.size());
    double added = 0;  // by the bounds, in sum
    for (size_t i : open) {
      const MemoryDemand& d = demands[i];
      const double amount = left * (weights > 0 ? d.weight / weights : alike);
      const double kept = std::clamp<double>(amount, d.least, d.wanted);
      given[i] = static_cast<uint32_t>(kept);
      added += kept - amount;
    }
    size_t kept = 0;
    for (size_t i : open) {
      const MemoryDemand& d = demands[i];
      const double amount = left * (weights > 0 ? d.weight / weights : alike);
      const bool breaks = added > 0 ? amount < d.least : amount > d.wanted;
      if (breaks) {
        fixed += given[i];
      } else {
        open[kept++] = i;
      }
    }
    if (kept == open.size()) break;
    open.resize(kept);
  }
  return given;
}

}  // namespace kvasir
