#include "sched/mechanisms/restore_split.h"

#include <algorithm>

namespace kvasir {
namespace {

struct LayerBytes {
  double kv = 0;
  double x = 0;
};

LayerBytes layer_bytes(const CacheGeometry& geometry) {
  return {static_cast<double>(geometry.kv_bytes_per_token_layer()),
          static_cast<double>(geometry.x_bytes_per_token_layer)};
}

}  // namespace

double restore_seconds(const CacheGeometry& geometry, const RestoreCost& cost, uint32_t groups) {
  const LayerBytes bytes = layer_bytes(geometry);
  const double as_x = std::min(groups * geometry.layers_per_group, geometry.layers);
  const double link = cost.link_s_per_byte * (as_x * bytes.x + (geometry.layers - as_x) * bytes.kv);
  return std::max(link, as_x * cost.projected_token_s);
}

uint32_t groups_kept_as_x(const CacheGeometry& geometry, const RestoreCost& cost) {
  const LayerBytes bytes = layer_bytes(geometry);
  if (bytes.x <= 0 || bytes.x >= bytes.kv) return 0;
  // Where the two terms meet; the least is at one of the whole numbers around it.
  const double saved = cost.link_s_per_byte * (bytes.kv - bytes.x);
  const double per_layer = cost.projected_token_s + saved;
  if (!(per_layer > 0)) return geometry.groups();
  const double meet = cost.link_s_per_byte * geometry.layers * bytes.kv / per_layer;
  const double layers = std::min<double>(meet, geometry.layers);
  const auto below = static_cast<uint32_t>(layers / geometry.layers_per_group);
  const uint32_t above = std::min(below + 1, geometry.groups());
  return restore_seconds(geometry, cost, above) <= restore_seconds(geometry, cost, below) ? above : below;
}

}  // namespace kvasir
