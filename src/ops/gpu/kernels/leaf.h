// Attention over one leaf for few queries, as in decoding.
#pragma once

#include "ops/gpu/kernels/leaf_parts.h"

namespace kvasir::ops::gpu {

// Queries go 16 at a time. Each of four warps scores 64 positions for all of
// them; then each computes some of the output's dimensions over all positions.
// V takes K's place in shared memory, so that several blocks fit into it and
// one computes while another's bytes come; for the next 16 queries K comes
// again. kHeadDim: 0: any.
template <int kHeadDim>
struct Leaf {
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = kHeadDim > 0 && kHeadDim <= 128 ? 3 : 1;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kPerWarp = kLeafPositions / kWarps;
  static constexpr int kWeightBytes = kStep * kLeafPositions * static_cast<int>(sizeof(uint16_t));
  static constexpr int kMaximaBytes = kWarps * kStep * static_cast<int>(sizeof(float));

  static Shape shape(const LeafArgs& a) {
    const int bytes = leaf_plane_bytes(a.kv.head_dim) + kWeightBytes + kMaximaBytes +
                      2 * static_cast<int>(sizeof(CopyBarrier));
    return {a.count, a.kv.kv_heads, kThreads, bytes};
  }

  struct Shared {
    uint16_t* kv;
    uint16_t* e;    // [16][256]: panels of 64 positions
    float* maxima;  // [warp][query]
    CopyBarrier* k_came;
    CopyBarrier* v_came;
  };

  static KV_DEVICE int head_dim_of(const LeafArgs& a) { return kHeadDim > 0 ? kHeadDim : a.kv.head_dim; }

  static KV_DEVICE Shared shared(const LeafArgs& a) {
    std::byte* at = shared_memory();
    Shared s;
    s.kv = reinterpret_cast<uint16_t*>(at);
    at += leaf_plane_bytes(head_dim_of(a));
    s.e = reinterpret_cast<uint16_t*>(at);
    at += kWeightBytes;
    s.maxima = reinterpret_cast<float*>(at);
    at += kMaximaBytes;
    s.k_came = reinterpret_cast<CopyBarrier*>(at);
    s.v_came = s.k_came + 1;
    return s;
  }

  static KV_DEVICE int e_offset(int query, int position) {
    return position / kPanelColumns * kPanelColumns * kStep +
           panel_offset(query, position % kPanelColumns, kPanelColumns);
  }

  // Scores of both of a lane's queries; s[j] is of positions 8 j from the
  // warp's first one on.
  static KV_DEVICE void score(const LeafArgs& a, const Shared& shared, const LeafQuery (&query)[2],
                              float (&s)[kPerWarp / 8][4]) {
    const int head_dim = head_dim_of(a);
    const int lane = lane_index();
    const int first = warp_index() * kPerWarp + lane % 8 + lane / 16 * 8;
    KV_UNROLL_LOOP
    for (int k = 0; k < head_dim; k += kStep) {
      uint32_t q[4];
      KV_UNROLL_LOOP
      for (int i = 0; i < 4; ++i) {
        q[i] = *reinterpret_cast<const uint32_t*>(query[i % 2].q + k + i / 2 * 8 + lane % 4 * 2);
      }
      const uint16_t* at = shared.kv + kv_head_offset(first, k + lane / 8 % 2 * 8, head_dim, kLeafPositions);
      const int step = kStep * kv_panel(k, head_dim).width;  // a swizzle repeats every 8 positions
      KV_UNROLL_LOOP
      for (int j = 0; j < kPerWarp / kStep; ++j) {
        uint32_t b[4];
        load_matrices(at + step * j, b);
        fused_step(s[2 * j], q, b[0], b[1]);
        fused_step(s[2 * j + 1], q, b[2], b[3]);
      }
    }
  }

  // From scores to m and to bf16 weights in shared memory.
  static KV_DEVICE void weigh(const LeafArgs& a, const Shared& shared, const LeafQuery (&query)[2],
                              float (&s)[kPerWarp / 8][4]) {
    const int lane = lane_index();
    const int first = warp_index() * kPerWarp + lane % 4 * 2;
    float m[2] = {kUnseen, kUnseen};
    KV_UNROLL_LOOP
    for (int j = 0; j < kPerWarp / 8; ++j) {
      KV_UNROLL_LOOP
      for (int i = 0; i < 4; ++i) {
        const int position = first + 8 * j + i % 2;
        if (a.cap.limit != 0) s[j][i] = capped(s[j][i], a.cap);
        if (position < query[i / 2].first || position >= query[i / 2].end) s[j][i] = kUnseen;
        m[i / 2] = larger(s[j][i], m[i / 2]);
      }
    }
    KV_UNROLL_LOOP
    for (int half = 0; half < 2; ++half) {
      m[half] = larger(m[half], shuffle_xor(m[half], 1));
      m[half] = larger(m[half], shuffle_xor(m[half], 2));
      if (lane % 4 == 0) shared.maxima[warp_index() * kStep + lane / 4 + 8 * half] = m[half];
    }
    sync_block();
    KV_UNROLL_LOOP
    for (int half = 0; half < 2; ++half) {
      float most = kUnseen;
      for (int w = 0; w < kWarps; ++w) {
        most = larger(shared.maxima[w * kStep + lane / 4 + 8 * half], most);
      }
      if (warp_index() == 0 && lane % 4 == 0 && query[half].partial != nullptr) query[half].partial[0] = most;
      KV_UNROLL_LOOP
      for (int j = 0; j < kPerWarp / 8; ++j) {
        const uint32_t pair =
            round_bf16_pair(exp2_at_most(s[j][2 * half] - most), exp2_at_most(s[j][2 * half + 1] - most));
        *reinterpret_cast<uint32_t*>(shared.e + e_offset(lane / 4 + 8 * half, first + 8 * j)) = pair;
      }
    }
    sync_block();
  }

  // l of all queries: a thread sums every eighth position of one.
  static KV_DEVICE void store_sums(const LeafArgs& a, const LeafWork& work, const Shared& shared,
                                   int first_query) {
    const int query = thread_index() / 8;
    float sum = 0;
    for (int position = thread_index() % 8; position < kLeafPositions; position += 8) {
      sum = sum + bf16_value(shared.e[e_offset(query, position)]);
    }
    for (int width = 1; width < 8; width *= 2) sum = sum + shuffle_xor(sum, width);
    float* partial = query_of(a, work, first_query + query, head_dim_of(a)).partial;
    if (thread_index() % 8 == 0 && partial != nullptr) partial[1] = sum;
  }

  static KV_DEVICE void store_outputs(const LeafArgs& a, const Shared& shared, const LeafQuery (&query)[2],
                                      const LeafRange& range) {
    const int head_dim = head_dim_of(a);
    const int lane = lane_index();
    for (int dim = kStep * warp_index(); dim < head_dim; dim += kStep * kWarps) {
      float o[2][4] = {};
      const uint16_t* at =
          shared.kv + kv_head_offset(lane % 16, dim + lane / 16 * 8, head_dim, kLeafPositions);
      const int width = kv_panel(dim, head_dim).width;
      for (int position = range.begin; position < range.end; position += kStep) {
        uint32_t e[4], v[4];
        load_matrices(shared.e + e_offset(lane % 16, position + lane / 16 * 8), e);
        load_matrices_transposed(at + position * width, v);
        fused_step(o[0], e, v[0], v[1]);
        fused_step(o[1], e, v[2], v[3]);
      }
      KV_UNROLL_LOOP
      for (int i = 0; i < 4; ++i) {
        if (query[i / 2].partial == nullptr) continue;
        float* out = query[i / 2].partial + 2 + dim + lane % 4 * 2 + i % 2;
        out[0] = o[0][i];
        out[8] = o[1][i];
      }
    }
  }

  static KV_DEVICE void run(const LeafArgs& a) {
    const LeafWork work = a.work[block_x()];
    if (a.kv.slices[a.rows[work.first_row].slice].left_out != 0) return;
    const int head_dim = head_dim_of(a);
    const LeafRange range = range_of(a, work);
    const Shared s = shared(a);
    if (thread_index() == 0) {
      barrier_init(s.k_came, 1);
      barrier_init(s.v_came, 1);
      fence_barrier_init();
    }
    sync_block();
    const int queries = work.rows * (a.heads / a.kv.kv_heads);
    for (int first = 0; first < queries; first += kStep) {
      const auto parity = static_cast<uint32_t>(first / kStep % 2);
      if (warp_index() == 0) fetch_leaf(a, work, range, head_dim, true, s.kv, s.k_came);
      const LeafQuery query[2] = {query_of(a, work, first + lane_index() / 4, head_dim),
                                  query_of(a, work, first + lane_index() / 4 + 8, head_dim)};
      float scores[kPerWarp / 8][4] = {};
      barrier_wait(s.k_came, parity);
      score(a, s, query, scores);
      weigh(a, s, query, scores);
      if (warp_index() == 0) fetch_leaf(a, work, range, head_dim, false, s.kv, s.v_came);
      store_sums(a, work, s, first);
      barrier_wait(s.v_came, parity);
      clear_unseen(range, head_dim, kThreads, s.kv);
      store_outputs(a, s, query, range);
      sync_block();  // all have read V, where K comes next
    }
  }
};

}  // namespace kvasir::ops::gpu
