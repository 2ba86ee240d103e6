#include "sched/mechanisms/retained_layers.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvasir {

uint32_t least_retained_groups(const CacheGeometry& geometry, const LinkCost& link, uint32_t tokens,
                               double prefill_s, double beta) {
  const uint32_t groups = geometry.groups();
  const double bytes = static_cast<double>(geometry.kv_cell_bytes()) * tokens / geometry.block_tokens;
  const double group_s = beta * bytes * link.seconds_per_byte;
  if (group_s <= 0) return 0;
  const double hidden = std::floor(prefill_s / group_s);
  return hidden >= groups ? 0 : groups - static_cast<uint32_t>(std::max(hidden, 0.0));
}

LayerSet spread_evenly(const LayerSet& among, uint32_t count) {
  const uint32_t all = among.count();
  KV_CHECK(count <= all, "count={} of {}", count, all);
  LayerSet out;
  uint32_t i = 0;
  among.for_each([&](uint32_t group) {
    ++i;
    // Where the running share of `count` passes a whole number.
    if (uint64_t{i} * count / all > uint64_t{i - 1} * count / all) out.add(group);
  });
  return out;
}

}  // namespace kvasir
