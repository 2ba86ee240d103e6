// Splits the layer groups of a history that has left the device into groups kept as X and groups kept as K
// and V.
//
// Source: HCache (Gao et al., EuroSys 2025), the partition of its states. A layer kept as hidden states moves
// half the bytes of K and V (in a model with as many heads of K and V as of Q), from which K and V are then
// projected. For the other layers K and V are moved. Both overlap, so restoring a token takes
//
//   T(n) = max( B (n x + (L - n) kv), n p )
//
//   symbol   here                                     unit
//   n        layers kept as X
//   L        CacheGeometry::layers
//   x, kv    bytes of X, and of K and V               bytes per token and layer
//   B        link_s_per_byte                          s per byte
//   p        CostModel::projected_token_s             s per token and layer
//
// and n minimises T. The first term falls with n and the second rises. If projecting is slower than the link,
// some layers are kept as K and V; if the link is slower, all are kept as X.
#pragma once

#include <cstdint>

#include "contract/geometry.h"

namespace kvasir {

struct RestoreCost {
  double link_s_per_byte = 0;
  double projected_token_s = 0;
};

// T with the first `groups` layer groups as X. The last group may have fewer layers.
double restore_seconds(const CacheGeometry& geometry, const RestoreCost& cost, uint32_t groups);

// The number of groups with the least T; of several the greatest, since X takes less memory. 0 if X is not
// smaller than K and V, or there is no X.
uint32_t groups_kept_as_x(const CacheGeometry& geometry, const RestoreCost& cost);

}  // namespace kvasir
