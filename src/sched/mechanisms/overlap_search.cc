#include "sched/mechanisms/overlap_search.h"

#include <cmath>

#include "base/check.h"

namespace kvasir {

double bubble_seconds(const OverlapTimes& times, OverlapConfig config) {
  KV_CHECK(times.layers > 0, "layers={}", times.layers);
  return std::abs(times.swap_s * config.swapped - times.again_s * config.again) / times.layers;
}

OverlapConfig least_bubble(const OverlapTimes& times) {
  OverlapConfig best = kPublishedOverlaps[0];
  for (OverlapConfig config : kPublishedOverlaps) {
    if (bubble_seconds(times, config) < bubble_seconds(times, best)) best = config;
  }
  return best;
}

}  // namespace kvasir
