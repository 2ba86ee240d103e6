// How much of the device tier's memory is the stage ring.
#pragma once

#include <cstdint>

#include "contract/geometry.h"

namespace kvasir {

struct RingUse {
  bool stages_by_choice = false;  // a policy stages also what the device could hold
  bool asked_for_length = false;  // the user asks for requests of that length
};

// Bytes of the ring, of a device tier of `device_bytes` in all (frames and ring) with a tier behind it
// that holds `slower_bytes` of keys and values, where no request is longer than `longest_tokens`. A slot is
// one layer of a block.
//
// Two layers of the longest request that the tiers could hold, so that one is staged while the one before is
// attended; at least 4 slots, and no more than two blocks of frames leave of the device tier: less than
// those, and nothing can be staged. But all requests lack what the ring has. So it takes up to a half of the
// tier only where requests can then be twice as long as with 4 slots, or longer at all if that is asked for;
// up to a 16th where they can be longer; up to a 32nd where they cannot, and a policy stages by choice; else
// 4 slots. 0 without a tier behind the device.
uint64_t stage_ring_bytes(const CacheGeometry& geometry, uint64_t device_bytes, uint64_t slower_bytes,
                          uint32_t longest_tokens, RingUse use = {});

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
