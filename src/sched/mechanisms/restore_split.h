// In how many layer groups a history that has left the device is kept as X, and in how many as K and V.
//
// Source: HCache (Gao et al., EuroSys 2025), the partition of its states. K and V of a layer kept as hidden
// states are projected from them, which is half as much to move as K and V are (of a model with as many heads
// of K and V as of Q) and has to be computed; those of the other layers are moved. Both overlap, so that
// restoring a token takes
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
// and n is chosen so that T is least. The first term falls with n and the second rises: where projecting is
// the slower of the two some layers are kept as K and V, and where the link is, all are kept as X.
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

// The number of groups for which T is least; of several the greatest, since X takes less memory. 0 where X is
// not smaller than K and V, or there is no X.
uint32_t groups_kept_as_x(const CacheGeometry& geometry, const RestoreCost& cost);

}  // namespace kvasir
