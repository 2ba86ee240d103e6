// What kernels of attention over a leaf of 256 positions have in common.
#pragma once

#include "base/leaf_tokens.h"
#include "ops/gpu/device.h"
#include "ops/gpu/kernel_args.h"
#include "ops/gpu/kernels/kv_place.h"
#include "ops/gpu/layouts.h"

namespace kvasir::ops::gpu {

constexpr int kLeafPositions = static_cast<int>(kLeafTokens);
// Positions, or dimensions, of one fused step; also the queries that it takes.
// A query is a row and one of the heads that share the KV head.
constexpr int kStep = 16;
// The score of what a query does not see.
constexpr float kUnseen = -__builtin_inff();

KV_BOTH constexpr int leaf_plane_bytes(int head_dim) {
  return kLeafPositions * head_dim * static_cast<int>(sizeof(uint16_t));
}

KV_DEVICE int position_in_leaf(int64_t position, int leaf) {
  const int64_t at = position - int64_t{leaf} * kLeafPositions;
  return at < 0 ? 0 : at > kLeafPositions ? kLeafPositions : static_cast<int>(at);
}

// Positions [begin, end) of the leaf, multiples of 16, hold all that some row
// sees; it sees none from `seen` on.
struct LeafRange {
  int begin;
  int end;
  int seen;
};
KV_DEVICE LeafRange range_of(const LeafArgs& a, const LeafWork& work) {
  const int64_t first = a.rows[work.first_row].position;
  const int seen = position_in_leaf(first + work.rows, work.leaf);
  const int begin = a.window > 0 ? position_in_leaf(first + 1 - a.window, work.leaf) : 0;
  return {begin / kStep * kStep, (seen + kStep - 1) / kStep * kStep, seen};
}

// What one query sees, of the block's KV head.
struct LeafQuery {
  const uint16_t* q;
  float* partial;  // null: nothing of this leaf
  int first;
  int end;
};
KV_DEVICE LeafQuery query_of(const LeafArgs& a, const LeafWork& work, int index, int head_dim) {
  const int group = a.heads / a.kv.kv_heads;
  const bool is_one = index < work.rows * group;
  if (!is_one) index = 0;
  const int row = work.first_row + index / group;
  const int head = block_y() * group + index % group;
  const int64_t position = a.rows[row].position;
  const int64_t before = planted(Fault::kWindowOffByOne) ? position : position + 1;
  LeafQuery query;
  query.q = a.q + (int64_t{row} * a.heads + head) * head_dim;
  query.first = a.window > 0 ? position_in_leaf(before - a.window, work.leaf) : 0;
  query.end = position_in_leaf(position + 1, work.leaf);
  query.partial = nullptr;
  if (is_one && query.first < query.end) {
    query.partial = a.partials + ((a.rows[row].first_record + work.leaf) * a.heads + head) * (2 + head_dim);
  }
  return query;
}

// By one warp: copies K, or V, of the blocks of the range to [256][head_dim] in
// shared memory. A lane takes a block at a time, since it first must read where
// that lies.
KV_DEVICE void fetch_leaf(const LeafArgs& a, const LeafWork& work, const LeafRange& range, int head_dim,
                          bool is_k, uint16_t* to, CopyBarrier* came) {
  const int tokens = static_cast<int>(a.kv.block_tokens);
  const int first = range.begin / tokens, end = (range.end + tokens - 1) / tokens;
  const uint32_t slice = a.rows[work.first_row].slice;
  const int kv_head = planted(Fault::kHeadOfNeighbour) ? (block_y() + 1) % a.kv.kv_heads : block_y();
  if (lane_index() == 0) {
    barrier_arrive_expecting(came, static_cast<uint32_t>((end - first) * tokens * head_dim * 2));
  }
  sync_warp();
  for (int b = first + lane_index(); b < end; b += kWarp) {
    const auto block = static_cast<uint32_t>(work.leaf * (kLeafPositions / tokens) + b);
    const KvPlace place = place_of(a.kv, slice, block);
    const auto* from = reinterpret_cast<const uint16_t*>(a.kv.memory + (is_k ? place.k : place.v)) +
                       static_cast<uint64_t>(kv_head) * kv_head_elements(a.kv);
    for (int dim = 0; dim < head_dim;) {
      const KvPanel panel = kv_panel(dim, head_dim);
      copy_to_shared(to + panel.first * kLeafPositions + b * tokens * panel.width,
                     from + panel.first * tokens, static_cast<uint32_t>(tokens * panel.width * 2), came);
      dim = panel.first + panel.width;
    }
  }
}

// By the whole block: zeros V of positions that no query sees. Their memory may hold bits that are no number,
// which would spoil the products though their weights are zero.
KV_DEVICE void clear_unseen(const LeafRange& range, int head_dim, int threads, uint16_t* v) {
  if (planted(Fault::kUnseenKept)) return;
  for (int i = thread_index(); i < (range.end - range.seen) * head_dim; i += threads) {
    v[kv_head_offset(range.seen + i / head_dim, i % head_dim, head_dim, kLeafPositions)] = 0;
  }
  fence_shared_to_copies();
  sync_block();
}

}  // namespace kvasir::ops::gpu
