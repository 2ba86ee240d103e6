// Where K and V of a sequence's block lie.
#pragma once

#include "ops/gpu/device.h"
#include "ops/gpu/kernel_args.h"

namespace kvasir::ops::gpu {

KV_DEVICE KvPlace place_of(const KvLayer& kv, uint32_t slice, uint32_t block) {
  const SlicePlace& s = kv.slices[slice];
  if (block >= s.staged_begin && block < s.staged_end) {
    const KvPlace staged = kv.staged[s.first_staged + uint64_t{kv.layer} * (s.staged_end - s.staged_begin) +
                                     block - s.staged_begin];
    if (staged.k != KvPlace::kAbsent) return staged;
  }
  const KvPlace frame = s.table[uint64_t{block} * kv.groups + kv.group];
  return {frame.k + kv.layer_offset, frame.v + kv.layer_offset};
}

// Elements from the place of K, or V, of a block to those of one KV head.
KV_DEVICE uint64_t kv_head_elements(const KvLayer& kv) {
  return uint64_t{kv.block_tokens} * static_cast<uint32_t>(kv.head_dim);
}

}  // namespace kvasir::ops::gpu
