// Whether a cached prefix that lies on slower tiers is fetched or computed anew. Where it is not worth
// fetching, a waiting sequence may adopt the blocks that are on the device.
#pragma once

#include "cache/blocks/prefix_index.h"
#include "contract/view.h"

namespace kvasir {

// Seconds by which one way must be faster than another: estimates are not more exact than this.
inline constexpr double kSlackS = 0.01;

// False if copying to the device what `found` has on slower tiers takes kSlackS longer than computing its
// tokens in a step that runs in any case. Both are believed (View::costs); true while nothing is known of one
// of them. at_peers: cells of KV on the host tier that are not copied, since peers attend to them.
bool worth_fetching(const View& view, const PrefixIndex::Match& found, uint32_t at_peers = 0);

}  // namespace kvasir
