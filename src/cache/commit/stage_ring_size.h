// How much of the device tier's memory is the stage ring.
#pragma once

#include <cstdint>

#include "contract/geometry.h"

namespace kvasir {

// Bytes of the ring, of a device tier of `device_bytes` in all (frames and ring) with a tier behind it
// that holds `slower_bytes` of keys and values, where no request is longer than `longest_tokens`. A slot is
// one layer of a block.
//
// Two layers of the longest request that the tiers could hold, so that one is staged while the one before is
// attended; at least 4 slots, and at most half of the device tier, or what two blocks of frames leave of it:
// less than those, and nothing can be staged. It is no more than 4 slots where a larger one lets no request
// be longer, since then nothing of that length has to pass it, unless `anything_staged`: a policy stages also
// what the device could hold. 0 without such a tier.
uint64_t stage_ring_bytes(const CacheGeometry& geometry, uint64_t device_bytes, uint64_t slower_bytes,
                          uint32_t longest_tokens, bool anything_staged = false);

// Bytes of a ring through which parts of many histories pass, with or without a tier behind the device: two
// layers of a fifth of what the device holds, at most a sixteenth of it, at least 4 slots, and no more than
// what two blocks of frames leave.
uint64_t shared_ring_bytes(const CacheGeometry& geometry, uint64_t device_bytes);

// Bytes of a ring for leaves of which some blocks are at peers and some here, beside which the next layer's
// are staged: of histories with so many cells on the host tier's own memory. At most half of the device tier.
uint64_t peers_ring_bytes(const CacheGeometry& geometry, uint64_t device_bytes, uint64_t own_host_cells);

// Bytes of a ring through which K and V made from X pass: a layer of a request of `longest_tokens`, at most a
// sixteenth of the device tier. 0 without X.
uint64_t projection_ring_bytes(const CacheGeometry& geometry, uint64_t device_bytes, uint32_t longest_tokens);

}  // namespace kvasir
