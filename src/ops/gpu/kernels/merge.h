// The aligned tree over a row's leaves (ops/attention_tree.h).
#pragma once

#include "base/leaf_tokens.h"
#include "ops/gpu/device.h"
#include "ops/gpu/kernel_args.h"
#include "ops/gpu/layouts.h"

namespace kvasir::ops::gpu {

// A block takes a row and a head, a thread one dimension. The subtrees that
// wait for their siblings are in shared memory.
struct MergeLeaves {
  // So many subtrees can wait at once where a row has less than 2^15 leaves.
  static constexpr int kMostPeaks = 32;
  static constexpr int kThreads = 256;  // at most
  static constexpr int kAtOnce = 8;

  static KV_BOTH constexpr int threads(int head_dim) { return (head_dim + kWarp - 1) / kWarp * kWarp; }
  static Shape shape(const MergeArgs& a) {
    return {a.count, a.heads, threads(a.head_dim),
            kMostPeaks * static_cast<int>(sizeof(Partial)) * threads(a.head_dim)};
  }

  struct Partial {
    float m;
    float l;
    float o;
  };

  static KV_DEVICE Partial merged(const Partial& left, const Partial& right) {
    Partial out;
    out.m = larger(left.m, right.m);
    const float a = exp2_of(left.m - out.m), b = exp2_of(right.m - out.m);
    out.l = fmaf(left.l, a, right.l * b);
    out.o = fmaf(left.o, a, right.o * b);
    return out;
  }

  static KV_DEVICE void store(const MergeArgs& a, float value) {
    const int k_tiles = tiles_for(a.heads * a.head_dim);
    if (thread_index() < a.head_dim) {
      a.image[operand_offset(block_x(), block_y() * a.head_dim + thread_index(), k_tiles)] =
          round_bf16(value);
    }
    if (block_y() != a.heads - 1) return;
    for (int i = a.heads * a.head_dim + thread_index(); i < k_tiles * kTileK; i += threads(a.head_dim)) {
      a.image[operand_offset(block_x(), i, k_tiles)] = 0;
    }
  }

  // The leaves from `leaf` on, as far as there are so many: all loads are on
  // their way before one is used.
  static KV_DEVICE void load(const MergeArgs& a, const RowPlace& row, int64_t leaf, int64_t end, int dim,
                             Partial (&loaded)[kAtOnce]) {
    const int64_t stride = int64_t{a.heads} * (2 + a.head_dim);
    const float* from = a.partials + (row.first_record + leaf) * stride + block_y() * (2 + a.head_dim);
    KV_UNROLL_LOOP
    for (int i = 0; i < kAtOnce; ++i) {
      if (leaf + i < end) loaded[i] = {from[i * stride], from[i * stride + 1], from[i * stride + 2 + dim]};
    }
  }
  // loaded[place], by selection: registers have no index.
  static KV_DEVICE Partial pick(const Partial (&loaded)[kAtOnce], int place) {
    Partial out = loaded[0];
    KV_UNROLL_LOOP
    for (int i = 1; i < kAtOnce; ++i) {
      if (i == place) out = loaded[i];
    }
    return out;
  }

  static KV_DEVICE void run(const MergeArgs& a) {
    const RowPlace& row = a.rows[block_x()];
    if (a.slices[row.slice].left_out != 0) {
      store(a, 0);
      return;
    }
    const int64_t position = row.position;
    const int64_t first_seen = a.window > 0 && position + 1 > a.window ? position + 1 - a.window : 0;
    const int64_t first_leaf = first_seen / kLeafTokens, end_leaf = position / kLeafTokens + 1;
    const int dim = thread_index() < a.head_dim ? thread_index() : 0;
    auto* waiting = reinterpret_cast<Partial*>(shared_memory()) + thread_index();
    const int stride = threads(a.head_dim);
    int peaks = 0;
    Partial loaded[kAtOnce];
    for (int64_t leaf = first_leaf; leaf < end_leaf; ++leaf) {
      const auto place = static_cast<int>((leaf - first_leaf) % kAtOnce);
      if (place == 0) load(a, row, leaf, end_leaf, dim, loaded);
      Partial top = pick(loaded, place);
      // A right child whose sibling begins inside the range meets it on top.
      int64_t first = leaf;
      for (int64_t leaves = 1; (first & leaves) != 0 && first - leaves >= first_leaf; leaves *= 2) {
        if (planted(Fault::kMergeInOrder)) break;
        top = merged(waiting[--peaks * stride], top);
        first -= leaves;
      }
      waiting[peaks++ * stride] = top;
    }
    Partial all = waiting[0];
    for (int i = 1; i < peaks; ++i) all = merged(all, waiting[i * stride]);
    store(a, all.o * (1.0F / all.l));
  }
};

}  // namespace kvasir::ops::gpu
