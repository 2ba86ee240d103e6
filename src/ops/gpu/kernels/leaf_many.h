// Attention over one leaf for many queries, as in prefill.
#pragma once

#include "ops/gpu/kernels/leaf_parts.h"

namespace kvasir::ops::gpu {

// K and V of the leaf are in shared memory together. Each of eight warps takes
// 16 queries at a time, all by itself: their scores of 256 positions stay in
// its registers, become weights there, and are the operand of the output.
template <int kHeadDim>
struct LeafMany {
  static_assert(kHeadDim % kStep == 0 && kHeadDim <= 128);
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kSteps = kLeafPositions / kStep;

  static Shape shape(const LeafArgs& a) {
    const int bytes = 2 * leaf_plane_bytes(kHeadDim) + 2 * static_cast<int>(sizeof(CopyBarrier));
    const int blocks = a.most_blocks > a.kv.kv_heads ? a.most_blocks / a.kv.kv_heads : 1;
    const int grid_x = a.most_blocks > 0 && blocks < a.count ? blocks : a.count;
    return {grid_x, a.kv.kv_heads, kThreads, bytes};
  }

  // Steps [begin, end) of 16 positions hold all that the warp's queries see.
  struct Steps {
    int begin;
    int end;
    bool all_seen;  // each of them sees all 256 positions
  };
  static KV_DEVICE Steps steps_of(const LeafQuery (&query)[2]) {
    int first = kLeafPositions, end = 0, unseen = 0;
    for (int half = 0; half < 2; ++half) {
      first = query[half].first < first ? query[half].first : first;
      end = query[half].end > end ? query[half].end : end;
      unseen |= query[half].first | (kLeafPositions - query[half].end);
    }
    for (int width = 4; width < kWarp; width *= 2) {
      const int other_first = shuffle_xor(first, width), other_end = shuffle_xor(end, width);
      first = other_first < first ? other_first : first;
      end = other_end > end ? other_end : end;
      unseen |= shuffle_xor(unseen, width);
    }
    return {first / kStep, (end + kStep - 1) / kStep, unseen == 0};
  }

  static KV_DEVICE void score(const uint16_t* k, const LeafQuery (&query)[2], const Steps& steps,
                              float (&s)[2 * kSteps][4]) {
    const int lane = lane_index();
    KV_UNROLL_LOOP
    for (int dim = 0; dim < kHeadDim; dim += kStep) {
      uint32_t q[4];
      KV_UNROLL_LOOP
      for (int i = 0; i < 4; ++i) {
        q[i] = *reinterpret_cast<const uint32_t*>(query[i % 2].q + dim + i / 2 * 8 + lane % 4 * 2);
      }
      const uint16_t* at =
          k + kv_head_offset(lane % 8 + lane / 16 * 8, dim + lane / 8 % 2 * 8, kHeadDim, kLeafPositions);
      const int step = kStep * kv_panel(dim, kHeadDim).width;  // a swizzle repeats every 8 positions
      KV_UNROLL_LOOP
      for (int j = 0; j < kSteps; ++j) {
        if (j < steps.begin || j >= steps.end) continue;
        uint32_t b[4];
        load_matrices(at + step * j, b);
        fused_step(s[2 * j], q, b[0], b[1]);
        fused_step(s[2 * j + 1], q, b[2], b[3]);
      }
    }
  }

  // From scores to m, l and the weights of each step, as the left operand of a
  // fused step has them.
  static KV_DEVICE void weigh(const LeafArgs& a, const LeafQuery (&query)[2], const Steps& steps,
                              float (&s)[2 * kSteps][4], uint32_t (&e)[kSteps][4]) {
    const int lane = lane_index();
    if (a.cap.limit != 0) {
      KV_UNROLL_LOOP
      for (int j = 0; j < 2 * kSteps; ++j) {
        KV_UNROLL_LOOP
        for (int i = 0; i < 4; ++i) s[j][i] = capped(s[j][i], a.cap);
      }
    }
    if (!steps.all_seen) {
      KV_UNROLL_LOOP
      for (int j = 0; j < 2 * kSteps; ++j) {
        KV_UNROLL_LOOP
        for (int i = 0; i < 4; ++i) {
          const int position = 8 * j + lane % 4 * 2 + i % 2;
          if (position < query[i / 2].first || position >= query[i / 2].end) s[j][i] = kUnseen;
        }
      }
    }
    float m[2] = {kUnseen, kUnseen};
    KV_UNROLL_LOOP
    for (int j = 0; j < 2 * kSteps; ++j) {
      KV_UNROLL_LOOP
      for (int i = 0; i < 4; ++i) m[i / 2] = larger(s[j][i], m[i / 2]);
    }
    KV_UNROLL_LOOP
    for (int half = 0; half < 2; ++half) {
      m[half] = larger(m[half], shuffle_xor(m[half], 1));
      m[half] = larger(m[half], shuffle_xor(m[half], 2));
    }
    float sum[4] = {};
    KV_UNROLL_LOOP
    for (int j = 0; j < 2 * kSteps; ++j) {
      KV_UNROLL_LOOP
      for (int half = 0; half < 2; ++half) {
        const uint32_t pair = round_bf16_pair(exp2_at_most(s[j][2 * half] - m[half]),
                                              exp2_at_most(s[j][2 * half + 1] - m[half]));
        e[j / 2][half + j % 2 * 2] = pair;
        sum[2 * half] = sum[2 * half] + bf16_value(static_cast<uint16_t>(pair));
        sum[2 * half + 1] = sum[2 * half + 1] + bf16_value(static_cast<uint16_t>(pair >> 16));
      }
    }
    KV_UNROLL_LOOP
    for (int half = 0; half < 2; ++half) {
      float l = sum[2 * half] + sum[2 * half + 1];
      l = l + shuffle_xor(l, 1);
      l = l + shuffle_xor(l, 2);
      if (lane % 4 == 0 && query[half].partial != nullptr) {
        query[half].partial[0] = m[half];
        query[half].partial[1] = l;
      }
    }
  }

  static KV_DEVICE void store_outputs(const uint16_t* v, const LeafQuery (&query)[2], const Steps& steps,
                                      const uint32_t (&e)[kSteps][4]) {
    const int lane = lane_index();
    float o[kHeadDim / 8][4] = {};
    int at[kHeadDim / kStep];
    KV_UNROLL_LOOP
    for (int d = 0; d < kHeadDim / kStep; ++d) {
      at[d] = kv_head_offset(lane % 16, kStep * d + lane / 16 * 8, kHeadDim, kLeafPositions);
    }
    KV_UNROLL_LOOP
    for (int j = 0; j < kSteps; ++j) {
      if (j < steps.begin || j >= steps.end) continue;
      KV_UNROLL_LOOP
      for (int d = 0; d < kHeadDim / kStep; ++d) {
        uint32_t b[4];
        load_matrices_transposed(v + at[d] + kStep * j * kv_panel(kStep * d, kHeadDim).width, b);
        fused_step(o[2 * d], e[j], b[0], b[1]);
        fused_step(o[2 * d + 1], e[j], b[2], b[3]);
      }
    }
    KV_UNROLL_LOOP
    for (int d = 0; d < kHeadDim / 8; ++d) {
      KV_UNROLL_LOOP
      for (int i = 0; i < 4; ++i) {
        if (query[i / 2].partial != nullptr) query[i / 2].partial[2 + 8 * d + lane % 4 * 2 + i % 2] = o[d][i];
      }
    }
  }

  // The block's first piece of work from `index` on whose slice has not left the step.
  static KV_DEVICE int work_from(const LeafArgs& a, int index) {
    while (index < a.count && a.kv.slices[a.rows[a.work[index].first_row].slice].left_out != 0)
      index += grid_x();
    return index;
  }

  // By one warp. index: there may be no such work.
  static KV_DEVICE void fetch(const LeafArgs& a, int index, bool is_k, uint16_t* to, CopyBarrier* came) {
    if (index >= a.count) return;
    const LeafWork work = a.work[index];
    fetch_leaf(a, work, range_of(a, work), kHeadDim, is_k, to, came);
  }

  static KV_DEVICE void run(const LeafArgs& a) {
    auto* k = reinterpret_cast<uint16_t*>(shared_memory());
    auto* v = k + kLeafPositions * kHeadDim;
    auto* k_came = reinterpret_cast<CopyBarrier*>(v + kLeafPositions * kHeadDim);
    CopyBarrier* v_came = k_came + 1;
    if (thread_index() == 0) {
      barrier_init(k_came, 1);
      barrier_init(v_came, 1);
      fence_barrier_init();
    }
    sync_block();
    const bool fetches = warp_index() == 0;
    int index = work_from(a, block_x());
    if (fetches) fetch(a, index, true, k, k_came);
    if (fetches) fetch(a, index, false, v, v_came);
    for (uint32_t parity = 0; index < a.count; parity ^= 1) {
      const LeafWork work = a.work[index];
      const int queries = work.rows * (a.heads / a.kv.kv_heads);
      index = work_from(a, index + grid_x());
      barrier_wait(k_came, parity);
      constexpr int kRound = kStep * kWarps;
      for (int begin = 0; begin < queries; begin += kRound) {
        const int first = begin + kStep * warp_index();
        const LeafQuery query[2] = {query_of(a, work, first + lane_index() / 4, kHeadDim),
                                    query_of(a, work, first + lane_index() / 4 + 8, kHeadDim)};
        const Steps steps = steps_of(query);
        float scores[2 * kSteps][4] = {};
        uint32_t e[kSteps][4];
        if (first < queries) {
          score(k, query, steps, scores);
          weigh(a, query, steps, scores, e);
        }
        if (begin + kRound >= queries) {
          sync_block();  // all have read K
          if (fetches) fetch(a, index, true, k, k_came);
        }
        if (begin == 0) {
          barrier_wait(v_came, parity);
          clear_unseen(range_of(a, work), kHeadDim, kThreads, v);
        }
        if (first < queries) store_outputs(v, query, steps, e);
      }
      sync_block();  // all have read V
      if (fetches) fetch(a, index, false, v, v_came);
    }
  }
};

}  // namespace kvasir::ops::gpu
