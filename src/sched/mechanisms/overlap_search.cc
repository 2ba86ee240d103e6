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

double checkpoint_bytes(OverlapConfig config, double kv_bytes, double hidden_bytes) {
  // Where no layer is swapped, each has its input from the one before it; where none is computed, none needs
  // it.
  const bool checkpoint = config.again > 0 && config.swapped > 0;
  return config.swapped * kv_bytes + (checkpoint ? hidden_bytes : 0);
}

}  // namespace kvasir
