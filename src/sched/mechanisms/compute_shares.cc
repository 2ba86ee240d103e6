#include "sched/mechanisms/compute_shares.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvasir {

uint32_t again_threads(double again_work, double decode_work, uint32_t total) {
  KV_CHECK(total % kWarpThreads == 0 && total >= 2 * kWarpThreads, "total={}", total);
  if (again_work <= 0) return 0;
  const double share = again_work / (again_work + std::max(decode_work, 0.0));
  const auto warps = static_cast<uint32_t>(std::lround(share * total / kWarpThreads));
  return std::clamp(warps, 1U, total / kWarpThreads - 1) * kWarpThreads;
}

}  // namespace kvasir
