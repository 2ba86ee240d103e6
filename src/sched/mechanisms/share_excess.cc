#include "sched/mechanisms/share_excess.h"

#include <cmath>

namespace kvasir {

std::vector<uint32_t> share_excess(const std::vector<MemoryDemand>& demands, uint64_t available) {
  std::vector<uint32_t> given;
  given.reserve(demands.size());
  uint64_t wanted = 0;
  for (const MemoryDemand& d : demands) {
    given.push_back(d.wanted);
    wanted += d.wanted;
  }
  // In each round whoever would fall below its least is set to it, and the others bear the rest.
  std::vector<bool> settled(demands.size(), false);
  for (bool again = wanted > available; again;) {
    again = false;
    double weights = 0;
    uint64_t open = 0, open_wanted = 0, fixed = 0;
    for (size_t i = 0; i < demands.size(); ++i) {
      if (settled[i]) {
        fixed += given[i];
        continue;
      }
      weights += demands[i].weight;
      open_wanted += demands[i].wanted;
      ++open;
    }
    if (open == 0) break;
    const double left = available > fixed ? static_cast<double>(available - fixed) : 0;
    const double excess = static_cast<double>(open_wanted) - left;
    for (size_t i = 0; i < demands.size(); ++i) {
      if (settled[i]) continue;
      const double share = weights > 0 ? demands[i].weight / weights : 1 / static_cast<double>(open);
      const double amount = std::floor(demands[i].wanted - std::max(0.0, excess) * share);
      if (amount < demands[i].least) {
        given[i] = demands[i].least;
        settled[i] = again = true;
      } else {
        given[i] = static_cast<uint32_t>(amount);
      }
    }
  }
  return given;
}

}  // namespace kvasir
