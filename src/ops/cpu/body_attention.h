// Attention over one leaf and the merging of its results, written once over sixteen lanes; included after
// body_vector.h, whose rules it follows.
#pragma once

#include <cstdint>

namespace kvasir::ops {
namespace {

// Queries that share each load of K and V.
constexpr int kQueryTile = 4;
constexpr int64_t kLeafRuns = kLeafTokens / kLanes;

// One (query row, head) of the call.
struct Query {
  const float* q;
  int64_t first;
  int64_t valid;
  float* m;
  float* l;
  float* o;
};

// Where each run of 16 positions of the leaf begins.
struct LeafRuns {
  const uint8_t* k[kLeafRuns];
  const uint8_t* v[kLeafRuns];
  const uint8_t* next_k[kLeafRuns];  // of the leaf to fetch, next_runs of them
  int64_t next_runs;
  int64_t scales_at;  // bytes from a run's begin to its scales; 0: the type has none
};

// The widest power of two such that `queries` rows of that many accumulators stay in registers.
constexpr int tile_width(int queries) {
  int width = 1;
  while (width < 8 && 2 * width * queries <= kTileF) width *= 2;
  return width;
}

template <KvType T>
constexpr int64_t kElementBytes = T == KvType::kF32    ? 4
                                  : T == KvType::kBf16 ? 2
                                                       : 1;

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

// Scores of Q queries against runs [begin, end), P at a time while they last.
//
// kCold: these are the call's first queries, which read K from memory. They fetch what the leaf needs next, V
// and the next P runs of K, in the order of memory, because then the hardware runs ahead of it. Measured with
// leaves in memory, one thread of a Zen 5: bf16 1.05 to 1.5 times as fast, q8_0 1.7 to 2. f32, whose lines
// come one a step already, gains nothing.
template <KvType T, int Q, int P, bool kCold>
inline void scores(const Query* queries, const LeafRuns& runs, int64_t head_dim, int64_t begin, int64_t end,
                   float (*s)[kLeafTokens]) {
  constexpr int64_t kStepBytes = P * kLanes * kElementBytes<T>;
  constexpr int kSlices = 1 + (kCold ? P - 1 : 0);
  for (; begin + P <= end; begin += P) {
    F acc[Q][P];
    KV_UNROLL
    for (int j = 0; j < Q; ++j) {
      KV_UNROLL
      for (int p = 0; p < P; ++p) acc[j][p] = f_zero();
    }
    int64_t i = 0;
    for (int slice = 0; slice < kSlices; ++slice) {
      // One step in each of P runs is P steps in one of those that are fetched. P divides head_dim.
      const uint8_t* v = runs.v[begin + slice];
      const uint8_t* next_k = runs.k[begin + slice + (begin + 2 * P <= end ? P : 0)];
      for (const int64_t stop = i + head_dim / kSlices; i < stop; ++i) {
        if constexpr (kCold) {
          for (int64_t at = 0; at < kStepBytes; at += 64) {
            __builtin_prefetch(v + at);
            __builtin_prefetch(next_k + at);
          }
          v += kStepBytes;
          next_k += kStepBytes;
        }
        F k[P];
        KV_UNROLL
        for (int p = 0; p < P; ++p) k[p] = load_kv<T>(runs.k[begin + p], i * kLanes);
        KV_UNROLL
        for (int j = 0; j < Q; ++j) {
          const F q = f_set1(queries[j].q[i]);
          KV_UNROLL
          for (int p = 0; p < P; ++p) acc[j][p] = f_fma(q, k[p], acc[j][p]);
        }
      }
    }
    for (int p = 0; p < P; ++p) {
      if (runs.scales_at == 0) {
        for (int j = 0; j < Q; ++j) f_store(s[j] + (begin + p) * kLanes, acc[j][p]);
        continue;
      }
      const F scale = f_load_f16(runs.k[begin + p] + runs.scales_at);
      for (int j = 0; j < Q; ++j) f_store(s[j] + (begin + p) * kLanes, f_mul(acc[j][p], scale));
    }
  }
  if constexpr (P > 1) scores<T, Q, P / 2, kCold>(queries, runs, head_dim, begin, end, s);
}

// Turns the scores of Q queries in place into e, times its position's V scale where the type has them, and
// gives m and l, for positions from `begin` on, a multiple of 16. What lies behind a query's last position is
// read in whole lanes and not used. Queries go side by side as far as all see the positions: one alone waits
// for its own results.
template <int Q>
inline void softmax_leaf(const Query* queries, const LeafRuns& runs, int64_t begin, float (*s)[kLeafTokens]) {
  const F lowest = f_set1(-__builtin_inff());
  int64_t common = queries[0].valid;
  for (int j = 1; j < Q; ++j) common = queries[j].valid < common ? queries[j].valid : common;
  common -= common % kLanes;
  F m[Q], sums[Q], shift[Q];
  for (int j = 0; j < Q; ++j) m[j] = lowest;
  for (int64_t i = begin; i < common; i += kLanes) {
    KV_UNROLL
    for (int j = 0; j < Q; ++j) m[j] = f_max(f_load(s[j] + i), m[j]);
  }
  for (int j = 0; j < Q; ++j) {
    for (int64_t i = common; i < queries[j].valid; i += kLanes) {
      const int64_t left = queries[j].valid - i;
      const F v = left < kLanes ? f_keep_first(f_load(s[j] + i), left, lowest) : f_load(s[j] + i);
      f_store(s[j] + i, v);
      m[j] = f_max(v, m[j]);
    }
    *queries[j].m = f_tree_max(m[j]);
    shift[j] = f_set1(*queries[j].m);
    sums[j] = f_zero();
  }
  const auto step = [&](int j, int64_t i) {
    F e = exp_lanes(f_sub(f_load(s[j] + i), shift[j]));
    sums[j] = f_add(sums[j], e);
    if (runs.scales_at != 0) e = f_mul(e, f_load_f16(runs.v[i / kLanes] + runs.scales_at));
    f_store(s[j] + i, e);
  };
  for (int64_t i = begin; i < common; i += kLanes) {
    KV_UNROLL
    for (int j = 0; j < Q; ++j) step(j, i);
  }
  for (int j = 0; j < Q; ++j) {
    for (int64_t i = common; i < queries[j].valid; i += kLanes) step(j, i);
    *queries[j].l = f_tree_add(sums[j]);
  }
}

// o of Q queries over positions [begin, end), for W groups of 16 dimensions; chains continue in acc. kFetch:
// with each position comes as much of the next leaf's K as the position's V takes, so that memory works here
// too.
template <KvType T, int Q, int W, bool kFetch>
inline void weigh(const LeafRuns& runs, int64_t head_dim, int64_t dim, int64_t begin, int64_t end,
                  const float (*s)[kLeafTokens], F (*acc)[W]) {
  while (begin < end) {
    const uint8_t* run = runs.v[begin / kLanes];
    const int64_t next = (begin / kLanes + 1) * kLanes;
    const int64_t row_bytes = head_dim * kElementBytes<T>;
    const uint8_t* fetched = begin / kLanes < runs.next_runs ? runs.next_k[begin / kLanes] : run;
    for (const int64_t stop = next < end ? next : end; begin < stop; ++begin) {
      if constexpr (kFetch) {
        for (int64_t at = 0; at < row_bytes; at += 64) {
          __builtin_prefetch(fetched + begin % kLanes * row_bytes + at);
        }
      }
      F v[W];
      KV_UNROLL
      for (int w = 0; w < W; ++w) v[w] = load_kv<T>(run, begin % kLanes * head_dim + dim + w * kLanes);
      KV_UNROLL
      for (int j = 0; j < Q; ++j) {
        const F e = f_set1(s[j][begin]);
        KV_UNROLL
        for (int w = 0; w < W; ++w) acc[j][w] = f_fma(e, v[w], acc[j][w]);
      }
    }
  }
}

// o for dimensions [dim, end), W groups of 16 at a time while they last.
template <KvType T, int Q, int W>
inline void outputs(const Query* queries, const LeafRuns& runs, int64_t head_dim, int64_t dim, int64_t end,
                    int64_t begin, const float (*s)[kLeafTokens], bool fetch) {
  int64_t common = queries[0].valid;
  for (int j = 1; j < Q; ++j) common = queries[j].valid < common ? queries[j].valid : common;
  for (; dim + W * kLanes <= end; dim += W * kLanes) {
    F acc[Q][W];
    KV_UNROLL
    for (int j = 0; j < Q; ++j) {
      KV_UNROLL
      for (int w = 0; w < W; ++w) acc[j][w] = f_zero();
    }
    if (fetch) {
      weigh<T, Q, W, true>(runs, head_dim, dim, begin, common, s, acc);
      fetch = false;
    } else {
      weigh<T, Q, W, false>(runs, head_dim, dim, begin, common, s, acc);
    }
    for (int j = 0; j < Q; ++j) {
      // Positions that only some of the queries see.
      F own[1][W];
      for (int w = 0; w < W; ++w) own[0][w] = acc[j][w];
      weigh<T, 1, W, false>(runs, head_dim, dim, common, queries[j].valid, s + j, own);
      for (int w = 0; w < W; ++w) f_store(queries[j].o + dim + w * kLanes, own[0][w]);
    }
  }
  if constexpr (W > 1) outputs<T, Q, W / 2>(queries, runs, head_dim, dim, end, begin, s, fetch);
}

// Caps a query's scores from run `begin` on, and gives positions before its first one no weight: adding their
// +0 changes no sum, so this equals leaving them out.
inline void cap_and_mask(const Query& query, int64_t begin, float score_cap, float* s) {
  if (score_cap != 0) {
    const F factor = f_set1(2.0f / score_cap), most = f_set1(score_cap);
    for (int64_t i = begin * kLanes; i < query.valid; i += kLanes)
      f_store(s + i, cap_lanes(f_load(s + i), factor, most));
  }
  for (int64_t i = begin * kLanes; i < query.first; ++i) s[i] = -__builtin_inff();
}

// All of a leaf for `held` queries, at most Q. cold: the call's first, which finds nothing in the caches.
template <KvType T, int Q>
inline void leaf_tile(const Query* queries, int held, const LeafRuns& runs, int64_t head_dim, float score_cap,
                      bool cold) {
  if constexpr (Q > 1) {
    if (held < Q) return leaf_tile<T, Q - 1>(queries, held, runs, head_dim, score_cap, cold);
  }
  alignas(64) float s[Q][kLeafTokens];
  int64_t most = 0, least = kLeafTokens;
  for (int j = 0; j < Q; ++j) {
    most = queries[j].valid > most ? queries[j].valid : most;
    least = queries[j].first < least ? queries[j].first : least;
  }
  const int64_t begin = least / kLanes;
  const int64_t seen = (most + kLanes - 1) / kLanes;
  constexpr int kWidth = tile_width(Q);
  constexpr bool kFetches = T != KvType::kF32;
  if (cold && kFetches) {
    scores<T, Q, kWidth, kFetches>(queries, runs, head_dim, begin, seen, s);
  } else {
    scores<T, Q, kWidth, false>(queries, runs, head_dim, begin, seen, s);
  }
  for (int j = 0; j < Q; ++j) cap_and_mask(queries[j], begin, score_cap, s[j]);
  softmax_leaf<Q>(queries, runs, begin * kLanes, s);
  outputs<T, Q, kWidth>(queries, runs, head_dim, 0, head_dim, begin * kLanes, s,
                        cold && kFetches && runs.next_runs > 0);
}

template <KvType T>
void leaf_queries(const AttentionLeafArgs& a, const LeafRuns& runs) {
  Query queries[kQueryTile];
  int held = 0;
  const int64_t total = a.rows * a.heads;
  for (int64_t i = 0; i < total; ++i) {
    const int64_t row = i / a.heads;
    const int64_t head = i % a.heads;
    float* record = a.out + row * a.out_stride;
    queries[held++] = {a.q + row * a.q_stride + head * a.head_dim,
                       a.first ? a.first[row] : 0,
                       a.valid[row],
                       record + head,
                       record + a.heads + head,
                       record + 2 * a.heads + head * a.head_dim};
    if (held < kQueryTile && i + 1 < total) continue;
    leaf_tile<T, kQueryTile>(queries, held, runs, a.head_dim, a.score_cap, i < kQueryTile);
    held = 0;
  }
}

// ---------------------------------------------------------------- V is a part of K

// Scores of up to 16 queries, one lane each, against rows of K in runs [begin, end): the same chains as
// scores() has, position by position. Q and K are laid out as the products want them first, which is little
// work beside these.
template <KvType T>
inline void latent_scores(const Query* queries, int held, const LeafRuns& runs, int64_t head_dim,
                          int64_t begin, int64_t end, float (*s)[kLeafTokens]) {
  constexpr int kRows = tile_width(1);
  alignas(64) float q[kMostLatentRow * kLanes];
  alignas(64) float k[kMostLatentRow * kRows];
  for (int64_t i = 0; i < head_dim; ++i) {
    for (int j = 0; j < kLanes; ++j) q[i * kLanes + j] = j < held ? queries[j].q[i] : 0.0f;
  }
  for (int64_t at = begin * kLanes; at < end * kLanes; at += kRows) {
    const uint8_t* run = runs.k[at / kLanes];
    for (int64_t p = 0; p < kRows; ++p) {
      for (int64_t i = 0; i < head_dim; i += kLanes) {
        f_store(k + p * head_dim + i, load_kv<T>(run, (at % kLanes + p) * head_dim + i));
      }
    }
    F acc[kRows];
    KV_UNROLL
    for (int p = 0; p < kRows; ++p) acc[p] = f_zero();
    for (int64_t i = 0; i < head_dim; ++i) {
      const F query = f_load(q + i * kLanes);
      KV_UNROLL
      for (int p = 0; p < kRows; ++p) acc[p] = f_fma(query, f_set1(k[p * head_dim + i]), acc[p]);
    }
    alignas(64) float scale[kLanes], lanes[kLanes];
    if (runs.scales_at != 0) f_store(scale, f_load_f16(run + runs.scales_at));
    for (int64_t p = 0; p < kRows; ++p) {
      f_store(lanes, runs.scales_at == 0 ? acc[p] : f_mul(acc[p], f_set1(scale[at % kLanes + p])));
      for (int j = 0; j < held; ++j) s[j][at + p] = lanes[j];
    }
  }
}

template <KvType T, int Q>
inline void latent_outputs(const Query* queries, int held, const LeafRuns& runs, const AttentionLeafArgs& a,
                           int64_t begin, float (*s)[kLeafTokens]) {
  if constexpr (Q > 1) {
    if (held < Q) return latent_outputs<T, Q - 1>(queries, held, runs, a, begin, s);
  }
  for (int j = 0; j < Q; ++j) cap_and_mask(queries[j], begin, a.score_cap, s[j]);
  softmax_leaf<Q>(queries, runs, begin * kLanes, s);
  outputs<T, Q, tile_width(Q)>(queries, runs, a.head_dim, 0, a.value_dim, begin * kLanes, s, false);
}

template <KvType T>
void latent_queries(const AttentionLeafArgs& a, const LeafRuns& runs) {
  alignas(64) float s[kLanes][kLeafTokens];
  Query queries[kLanes];
  int held = 0;
  const int64_t total = a.rows * a.heads;
  for (int64_t i = 0; i < total; ++i) {
    const int64_t row = i / a.heads;
    const int64_t head = i % a.heads;
    float* record = a.out + row * a.out_stride;
    queries[held++] = {a.q + row * a.q_stride + head * a.head_dim,
                       a.first ? a.first[row] : 0,
                       a.valid[row],
                       record + head,
                       record + a.heads + head,
                       record + 2 * a.heads + head * a.value_dim};
    if (held < kLanes && i + 1 < total) continue;
    int64_t most = 0, least = kLeafTokens;
    for (int j = 0; j < held; ++j) {
      most = queries[j].valid > most ? queries[j].valid : most;
      least = queries[j].first < least ? queries[j].first : least;
    }
    const int64_t begin = least / kLanes;
    latent_scores<T>(queries, held, runs, a.head_dim, begin, (most + kLanes - 1) / kLanes, s);
    for (int j = 0; j < held; j += kQueryTile) {
      const int left = held - j < kQueryTile ? held - j : kQueryTile;
      latent_outputs<T, kQueryTile>(queries + j, left, runs, a, begin, s + j);
    }
    held = 0;
  }
}

template <KvType T>
void attend_queries(const AttentionLeafArgs& a, const LeafRuns& runs) {
  if (a.value_dim > 0) {
    latent_queries<T>(a, runs);
  } else {
    leaf_queries<T>(a, runs);
  }
}

void attention_leaf(const AttentionLeafArgs& a) {
  int64_t most = 0;
  int64_t least = a.first ? kLeafTokens : 0;
  for (int64_t r = 0; r < a.rows; ++r) {
    most = a.valid[r] > most ? a.valid[r] : most;
    if (a.first && a.first[r] < least) least = a.first[r];
  }
  const int64_t run_bytes = kLanes * kv_row_bytes(a.type, a.head_dim);
  LeafRuns runs;
  runs.scales_at = a.type == KvType::kQ8_0 ? kLanes * a.head_dim : 0;
  const auto run_of = [&](const void* const* tiles, int64_t t) {
    const int64_t block = t * kLanes / a.block_tokens;
    const int64_t inside = t - block * a.block_tokens / kLanes;
    return static_cast<const uint8_t*>(tiles[block]) + inside * run_bytes;
  };
  for (int64_t t = least / kLanes; t * kLanes < most; ++t) {
    runs.k[t] = run_of(a.k_tiles, t);
    runs.v[t] = run_of(a.v_tiles, t);
  }
  runs.next_runs = a.next_tiles * a.block_tokens / kLanes;
  for (int64_t t = 0; t < runs.next_runs; ++t) runs.next_k[t] = run_of(a.next_k_tiles, t);
  if (a.type == KvType::kQ8_0) {
    attend_queries<KvType::kQ8_0>(a, runs);
  } else if (a.type == KvType::kBf16) {
    attend_queries<KvType::kBf16>(a, runs);
  } else {
    attend_queries<KvType::kF32>(a, runs);
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

void finalize(const float* partial, const float* sinks, int64_t heads, int64_t head_dim, float* out) {
  for (int64_t h = 0; h < heads; ++h) {
    F l = f_set1(partial[heads + h]), a = f_set1(1.0f);
    if (sinks != nullptr) {
      const float m = partial[h] > sinks[h] ? partial[h] : sinks[h];
      a = exp_lanes(f_set1(partial[h] - m));
      l = f_fma(l, a, exp_lanes(f_set1(sinks[h] - m)));
    }
    const float* o = partial + 2 * heads + h * head_dim;
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      f_store(out + h * head_dim + i, f_div(f_mul(f_load(o + i), a), l));
    }
  }
}

}  // namespace
}  // namespace kvasir::ops
