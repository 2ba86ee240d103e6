// Attention over one leaf and the merging of its results, written once over sixteen lanes; included after
// body_vector.h, whose rules it follows.
#pragma once

#include <cstdint>

namespace kvasir::ops {
namespace {

constexpr int kQueryTile = 4;
constexpr int64_t kLeafTiles = kLeafTokens / kLanes;

// One (query row, head) of the call.
struct Query {
  const float* q;
  int64_t valid;
  float* m;
  float* l;
  float* o;
};

// Where each run of 16 positions of the leaf begins, and for kQ8_0 the scales of its positions (else null).
struct LeafTiles {
  const uint8_t* k[kLeafTiles];
  const uint8_t* v[kLeafTiles];
  const float* k_scales;
  const float* v_scales;
};

// The widest power of two such that `queries` rows of that many accumulators stay in registers.
constexpr int tile_width(int queries) {
  int width = 1;
  while (width < 8 && 2 * width * queries <= kTileF) width *= 2;
  return width;
}

template <KvType T>
inline F load_kv(const uint8_t* base, int64_t element) {
  if constexpr (T == KvType::kBf16) {
    return f_load_bf16(base + 2 * element);
  } else if constexpr (T == KvType::kQ8_0) {
    return f_load_i8(base + element);
  } else {
    return f_load(reinterpret_cast<const float*>(base) + element);
  }
}

// Scores of Q queries against position tiles [begin, end), P at a time while they last.
template <KvType T, int Q, int P>
inline void scores(const Query* queries, const LeafTiles& tiles, int64_t head_dim, int64_t begin, int64_t end,
                   float (*s)[kLeafTokens]) {
  for (; begin + P <= end; begin += P) {
    F acc[Q][P];
    KV_UNROLL
    for (int j = 0; j < Q; ++j) {
      KV_UNROLL
      for (int p = 0; p < P; ++p) acc[j][p] = f_zero();
    }
    for (int64_t i = 0; i < head_dim; ++i) {
      F k[P];
      KV_UNROLL
      for (int p = 0; p < P; ++p) k[p] = load_kv<T>(tiles.k[begin + p], i * kLanes);
      KV_UNROLL
      for (int j = 0; j < Q; ++j) {
        const F q = f_set1(queries[j].q[i]);
        KV_UNROLL
        for (int p = 0; p < P; ++p) acc[j][p] = f_fma(q, k[p], acc[j][p]);
      }
    }
    for (int j = 0; j < Q; ++j) {
      for (int p = 0; p < P; ++p) {
        F score = acc[j][p];
        if constexpr (T == KvType::kQ8_0) {
          score = f_mul(score, f_load(tiles.k_scales + (begin + p) * kLanes));
        }
        f_store(s[j] + (begin + p) * kLanes, score);
      }
    }
  }
  if constexpr (P > 1) scores<T, Q, P / 2>(queries, tiles, head_dim, begin, end, s);
}

// Turns one query's scores in place into e, times its position's scale where there are scales, and gives m
// and l.
inline void softmax_leaf(const Query& query, const float* scales, float* s) {
  const F lowest = f_set1(-__builtin_inff());
  F m = lowest;
  for_lanes(query.valid, [&](int64_t i, int64_t count) {
    F v = f_load(s + i);
    if (count < 16) {
      v = f_keep_first(v, count, lowest);
      f_store(s + i, v);
    }
    m = f_max(v, m);
  });
  *query.m = f_tree_max(m);
  const F shift = f_set1(*query.m);
  F sums = f_zero();
  for_lanes(query.valid, [&](int64_t i, int64_t) {
    const F e = exp_lanes(f_sub(f_load(s + i), shift));
    f_store(s + i, scales == nullptr ? e : f_mul(e, f_load(scales + i)));
    sums = f_add(sums, e);
  });
  *query.l = f_tree_add(sums);
}

// o of Q queries over positions [begin, end), for W runs of 16 dimensions; chains continue in acc.
template <KvType T, int Q, int W>
inline void weigh(const LeafTiles& tiles, int64_t head_dim, int64_t dim, int64_t begin, int64_t end,
                  const float (*s)[kLeafTokens], F (*acc)[W]) {
  while (begin < end) {
    const uint8_t* base = tiles.v[begin / kLanes];
    const int64_t run = (begin / kLanes + 1) * kLanes;
    for (const int64_t stop = run < end ? run : end; begin < stop; ++begin) {
      F v[W];
      KV_UNROLL
      for (int w = 0; w < W; ++w) v[w] = load_kv<T>(base, begin % kLanes * head_dim + dim + w * kLanes);
      KV_UNROLL
      for (int j = 0; j < Q; ++j) {
        const F e = f_set1(s[j][begin]);
        KV_UNROLL
        for (int w = 0; w < W; ++w) acc[j][w] = f_fma(e, v[w], acc[j][w]);
      }
    }
  }
}

// o for dimensions from `dim` on, W runs of 16 at a time while they last.
template <KvType T, int Q, int W>
inline void outputs(const Query* queries, const LeafTiles& tiles, int64_t head_dim, int64_t dim,
                    const float (*s)[kLeafTokens]) {
  int64_t common = queries[0].valid;
  for (int j = 1; j < Q; ++j) common = queries[j].valid < common ? queries[j].valid : common;
  for (; dim + W * kLanes <= head_dim; dim += W * kLanes) {
    F acc[Q][W];
    KV_UNROLL
    for (int j = 0; j < Q; ++j) {
      KV_UNROLL
      for (int w = 0; w < W; ++w) acc[j][w] = f_zero();
    }
    weigh<T, Q, W>(tiles, head_dim, dim, 0, common, s, acc);
    for (int j = 0; j < Q; ++j) {
      // Positions that only some of the queries see.
      F own[1][W];
      for (int w = 0; w < W; ++w) own[0][w] = acc[j][w];
      weigh<T, 1, W>(tiles, head_dim, dim, common, queries[j].valid, s + j, own);
      for (int w = 0; w < W; ++w) f_store(queries[j].o + dim + w * kLanes, own[0][w]);
    }
  }
  if constexpr (W > 1) outputs<T, Q, W / 2>(queries, tiles, head_dim, dim, s);
}

template <KvType T, int Q>
void leaf_tile(const Query* queries, const LeafTiles& tiles, int64_t head_dim) {
  alignas(64) float s[Q][kLeafTokens];
  int64_t most = 0;
  for (int j = 0; j < Q; ++j) most = queries[j].valid > most ? queries[j].valid : most;
  scores<T, Q, tile_width(Q)>(queries, tiles, head_dim, 0, (most + kLanes - 1) / kLanes, s);
  for (int j = 0; j < Q; ++j) softmax_leaf(queries[j], tiles.v_scales, s[j]);
  outputs<T, Q, tile_width(Q)>(queries, tiles, head_dim, 0, s);
}

template <KvType T>
void leaf_queries(const AttentionLeafArgs& a, const LeafTiles& tiles) {
  Query queries[kQueryTile];
  int held = 0;
  const int64_t total = a.rows * a.heads;
  for (int64_t i = 0; i < total; ++i) {
    const int64_t row = i / a.heads;
    const int64_t head = i % a.heads;
    float* record = a.out + row * a.out_stride;
    queries[held++] = {a.q + row * a.q_stride + head * a.head_dim, a.valid[row], record + head,
                       record + a.heads + head, record + 2 * a.heads + head * a.head_dim};
    if (held < kQueryTile && i + 1 < total) continue;
    if (held == 4) leaf_tile<T, 4>(queries, tiles, a.head_dim);
    if (held == 3) leaf_tile<T, 3>(queries, tiles, a.head_dim);
    if (held == 2) leaf_tile<T, 2>(queries, tiles, a.head_dim);
    if (held == 1) leaf_tile<T, 1>(queries, tiles, a.head_dim);
    held = 0;
  }
}

void attention_leaf(const AttentionLeafArgs& a) {
  int64_t most = 0;
  for (int64_t r = 0; r < a.rows; ++r) most = a.valid[r] > most ? a.valid[r] : most;
  const int64_t run_bytes = kLanes * kv_row_bytes(a.type, a.head_dim);
  alignas(64) float scales[2][kLeafTokens];
  LeafTiles tiles;
  const bool scaled = a.type == KvType::kQ8_0;
  tiles.k_scales = scaled ? scales[0] : nullptr;
  tiles.v_scales = scaled ? scales[1] : nullptr;
  for (int64_t t = 0; t * kLanes < most; ++t) {
    const int64_t block = t * kLanes / a.block_tokens;
    const int64_t inside = t - block * a.block_tokens / kLanes;
    tiles.k[t] = static_cast<const uint8_t*>(a.k_tiles[block]) + inside * run_bytes;
    tiles.v[t] = static_cast<const uint8_t*>(a.v_tiles[block]) + inside * run_bytes;
    if (!scaled) continue;
    f_store(scales[0] + t * kLanes, f_load_f16(tiles.k[t] + kLanes * a.head_dim));
    f_store(scales[1] + t * kLanes, f_load_f16(tiles.v[t] + kLanes * a.head_dim));
  }
  if (a.type == KvType::kQ8_0) {
    leaf_queries<KvType::kQ8_0>(a, tiles);
  } else if (a.type == KvType::kBf16) {
    leaf_queries<KvType::kBf16>(a, tiles);
  } else {
    leaf_queries<KvType::kF32>(a, tiles);
  }
}

void merge(const float* left, const float* right, int64_t heads, int64_t head_dim, float* out) {
  for (int64_t h = 0; h < heads; ++h) {
    const float m1 = left[h];
    const float m2 = right[h];
    const float m = m1 > m2 ? m1 : m2;
    const F a = exp_lanes(f_set1(m1 - m));
    const F b = exp_lanes(f_set1(m2 - m));
    out[h] = m;
    const F l = f_fma(f_set1(left[heads + h]), a, f_mul(f_set1(right[heads + h]), b));
    f_store_tail(out + heads + h, l, 1);
    const int64_t first = 2 * heads + h * head_dim;
    for (int64_t i = first; i < first + head_dim; i += kLanes) {
      f_store(out + i, f_fma(f_load(left + i), a, f_mul(f_load(right + i), b)));
    }
  }
}

void finalize(const float* partial, int64_t heads, int64_t head_dim, float* out) {
  for (int64_t h = 0; h < heads; ++h) {
    const F l = f_set1(partial[heads + h]);
    const float* o = partial + 2 * heads + h * head_dim;
    for (int64_t i = 0; i < head_dim; i += kLanes) f_store(out + h * head_dim + i, f_div(f_load(o + i), l));
  }
}

}  // namespace
}  // namespace kvasir::ops
