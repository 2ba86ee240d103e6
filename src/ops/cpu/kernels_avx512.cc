// The kernels for AVX-512 with VNNI.
#include "ops/cpu/kernel_table.h"
#include "ops/cpu/lanes_avx512.h"
#include "ops/weight_traits.h"
#define KV_OPS_LANES
#include "ops/cpu/body_vector.h"
// After the lanes and the helpers that they use.
#include "ops/cpu/body_attention.h"
#include "ops/cpu/body_gemm.h"
#include "ops/cpu/body_gemm_float.h"
#include "ops/cpu/body_int8_tile.h"
#include "ops/cpu/body_kv.h"
#include "ops/cpu/body_recurrent.h"

namespace kvasir::ops {
namespace {

// 1: with a minimum, and without an offset; 2: two scales in a group.
constexpr int int8_form(const WeightTraits& t) {
  return (t.has_min ? 1 : 0) + (t.scales == 2 ? 2 : 0);
}

// Two integer sums and two chains a row fill 24 of the 32 registers; with two scales in a group so do the
// sums of both halves beside them, for fewer rows. The rest hold weights, scales and the activation that is
// being broadcast. Where shifts and masks have ports of their own, undoing codes costs nothing beside the
// products, and only where a group has two scales is it worth while to undo them once for all tiles.
constexpr TileHeights tile_heights(int form) {
  return form >= 2 ? TileHeights{4, 4, 12} : TileHeights{6, 6, kAllRows};
}

inline __m512i broadcast_quad(const int8_t* q) {
  int32_t v;
  __builtin_memcpy(&v, q, sizeof(v));
  return _mm512_set1_epi32(v);
}
// What integer sums begin with: the rows' negated sums times the weights' offset, a power of two. It is
// shifted into place, since the ports that multiply are the ones that are short.
class Starts {
 public:
  explicit Starts(int32_t offset)
      : right_(_mm512_set1_epi32(16 - __builtin_ctz(static_cast<unsigned>(offset) | 0x10000))) {}
  // sums: of a row's group
  __m512i whole(const int16_t* sums) const {
    return _mm512_srav_epi32(_mm512_slli_epi32(both(sums), 16), right_);
  }
  __m512i second(const int16_t* sums) const {
    return _mm512_srav_epi32(_mm512_and_si512(both(sums), _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))),
                             right_);
  }
  __m512i first(const int16_t* sums) const { return _mm512_sub_epi32(whole(sums), second(sums)); }

 private:
  static __m512i both(const int16_t* sums) { return broadcast_quad(reinterpret_cast<const int8_t*>(sums)); }
  __m512i right_;
};

// Something that several rows have, `stride` bytes apart. An address is one of few registers, plus the stride
// once or twice, plus a constant: registers would not suffice for a pointer to each row.
template <typename T, int R>
class OfRows {
 public:
  OfRows(const T* first, int64_t stride) : stride_(stride) {
    KV_UNROLL
    for (int i = 0; i < kThirds; ++i) third_[i] = reinterpret_cast<const uint8_t*>(first) + 3 * i * stride;
  }
  const T* row(int r) const {
    const uint8_t* p = third_[r / 3];
    return reinterpret_cast<const T*>(r % 3 == 0 ? p : r % 3 == 1 ? p + stride_ : p + 2 * stride_);
  }
  void advance(int64_t bytes) {
    KV_UNROLL
    for (int i = 0; i < kThirds; ++i) {
      third_[i] += bytes;
      if constexpr (R > 1) __asm__("" : "+r"(third_[i]));  // or the compiler makes a pointer of each sum
    }
  }

 private:
  static constexpr int kThirds = (R + 2) / 3;
  const uint8_t* third_[kThirds];
  int64_t stride_;
};

// Exact integer sums of R rows with 32 columns over quads [kQuad, kEnd) of a group. q: the group's.
template <int kQuad, int kEnd, int R, typename Source>
KV_INLINE void quad_sums(const Source& source, int64_t group, const OfRows<int8_t, R>& q, __m512i (*dot)[2]) {
  if constexpr (kQuad < kEnd) {
    const __m512i left = source.template bytes<kQuad, 0>(group);
    const __m512i right = source.template bytes<kQuad, 1>(group);
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512i a = broadcast_quad(q.row(r) + 4 * kQuad);
      dot[r][0] = _mm512_dpbusd_epi32(dot[r][0], left, a);
      dot[r][1] = _mm512_dpbusd_epi32(dot[r][1], right, a);
    }
    quad_sums<kQuad + 1, kEnd, R>(source, group, q, dot);
  }
}

template <int R>
inline void load_rows(const float* chains, F (*acc)[2]) {
  KV_UNROLL
  for (int r = 0; r < R; ++r) {
    acc[r][0] = f_load(chains + r * kPanel);
    acc[r][1] = f_load(chains + r * kPanel + 16);
  }
}
template <int R>
inline void store_rows(float* chains, const F (*acc)[2]) {
  KV_UNROLL
  for (int r = 0; r < R; ++r) {
    f_store(chains + r * kPanel, acc[r][0]);
    f_store(chains + r * kPanel + 16, acc[r][1]);
  }
}

// One scale in each group.
template <bool kMin, int R, typename Source>
inline void int8_groups(const Int8Tile& t, const Source& source) {
  F acc[R][2];
  load_rows<R>(t.chains, acc);
  Ahead ahead = source.ahead();
  const Starts starts(t.offset);
  OfRows<int8_t, R> q(t.q, t.k);
  OfRows<float, R> scales(t.scales, 4 * t.row_groups), moments(t.moments, 4 * t.row_groups);
  OfRows<int16_t, R> sums(t.sums, 4 * t.row_groups);
  for (int64_t g = 0; g < t.groups; ++g) {
    __m512i dot[R][2];
    KV_UNROLL
    for (int r = 0; r < R; ++r)
      dot[r][0] = dot[r][1] = kMin ? _mm512_setzero_si512() : starts.whole(sums.row(r));
    source.fetch(ahead, g);
    quad_sums<0, 8, R>(source, g, q, dot);
    const auto from = source.scales(g);
    const F scale[2] = {from.scale(0, 0), from.scale(0, 16)};
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const F da = f_set1(*scales.row(r));
      KV_UNROLL
      for (int h = 0; h < 2; ++h) {
        acc[r][h] = f_fma(f_mul(scale[h], da), _mm512_cvtepi32_ps(dot[r][h]), acc[r][h]);
      }
    }
    if constexpr (kMin) {
      const F minimum[2] = {from.minimum(0, 0), from.minimum(0, 16)};
      KV_UNROLL
      for (int r = 0; r < R; ++r) {
        const F moment = f_set1(*moments.row(r));
        KV_UNROLL
        for (int h = 0; h < 2; ++h) acc[r][h] = f_fma(minimum[h], moment, acc[r][h]);
      }
    }
    q.advance(kGroup);
    scales.advance(4);
    moments.advance(4);
    sums.advance(4);
  }
  store_rows<R>(t.chains, acc);
}

// A scale for each half of a group.
template <bool kMin, int R, typename Source>
inline void int8_half_groups(const Int8Tile& t, const Source& source) {
  F acc[R][2];
  load_rows<R>(t.chains, acc);
  Ahead ahead = source.ahead();
  const Starts starts(t.offset);
  OfRows<int8_t, R> q(t.q, t.k);
  OfRows<float, R> scales(t.scales, 4 * t.row_groups);
  OfRows<int16_t, R> sums(t.sums, 4 * t.row_groups);
  for (int64_t g = 0; g < t.groups; ++g, q.advance(kGroup), scales.advance(4), sums.advance(4)) {
    __m512i dot[R][2];
    F sum[R][2];
    KV_UNROLL
    for (int r = 0; r < R; ++r)
      dot[r][0] = dot[r][1] = kMin ? _mm512_setzero_si512() : starts.first(sums.row(r));
    source.fetch(ahead, g);
    quad_sums<0, 4, R>(source, g, q, dot);
    const auto from = source.scales(g);
    const F first[2] = {from.scale(0, 0), from.scale(0, 16)};
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512i start = kMin ? _mm512_setzero_si512() : starts.second(sums.row(r));
      KV_UNROLL
      for (int h = 0; h < 2; ++h) {
        sum[r][h] = f_mul(first[h], _mm512_cvtepi32_ps(dot[r][h]));
        dot[r][h] = start;
      }
    }
    quad_sums<4, 8, R>(source, g, q, dot);
    KV_UNROLL
    for (int h = 0; h < 2; ++h) {
      const F second = from.scale(1, 16 * h);
      KV_UNROLL
      for (int r = 0; r < R; ++r) {
        F both = f_fma(second, _mm512_cvtepi32_ps(dot[r][h]), sum[r][h]);
        if constexpr (kMin) {
          both = f_fma(from.minimum(0, 16 * h), f_set1(static_cast<float>(sums.row(r)[1] - sums.row(r)[0])),
                       both);
          both = f_fma(from.minimum(1, 16 * h), f_set1(static_cast<float>(-sums.row(r)[1])), both);
        }
        acc[r][h] = f_fma(f_set1(*scales.row(r)), both, acc[r][h]);
      }
    }
  }
  store_rows<R>(t.chains, acc);
}

template <int kForm, int R, typename Source>
inline void int8_tile(const Int8Tile& t, const Source& source) {
  if constexpr (kForm >= 2) {
    int8_half_groups<kForm % 2 == 1, R>(t, source);
  } else {
    int8_groups<kForm % 2 == 1, R>(t, source);
  }
}

}  // namespace
}  // namespace kvasir::ops

#include "ops/cpu/body_gemm_int8.h"
#include "ops/cpu/int8_matrix_tiles.h"

namespace kvasir::ops {
namespace {

// The same products by the instruction that does both fma at once. Only these functions are compiled for it:
// the rest of this file must run without it.
#define KV_BF16_DOT __attribute__((target("avx512bf16")))

struct DotProduct : PairProduct {
  template <int R, int P>
  KV_BF16_DOT static void tile(const TileArgs& t) {
    const auto* a = static_cast<const uint16_t*>(t.rows);
    Ahead ahead = t.ahead;
    F acc[R][P][2];
    load_chains<R, P>(t.chains, acc);
    for (int64_t i = 0; i < t.steps; ++i) {
      __m512i w[P][2];
      KV_UNROLL
      for (int p = 0; p < P; ++p) {
        const auto* line = static_cast<const uint8_t*>(t.weights[p]) + i * 2 * kLineBytes;
        w[p][0] = _mm512_loadu_si512(line);
        w[p][1] = _mm512_loadu_si512(line + kLineBytes);
      }
      if constexpr (P == 1) {
        fetch_ahead<2 * kLineBytes>(ahead, i, static_cast<const uint8_t*>(t.weights[0]) + i * 2 * kLineBytes);
      }
      KV_UNROLL
      for (int r = 0; r < R; ++r) {
        const auto x = reinterpret_cast<__m512bh>(set1_pair(a + r * t.lda + 2 * i));
        KV_UNROLL
        for (int p = 0; p < P; ++p) {
          acc[r][p][0] = _mm512_dpbf16_ps(acc[r][p][0], x, reinterpret_cast<__m512bh>(w[p][0]));
          acc[r][p][1] = _mm512_dpbf16_ps(acc[r][p][1], x, reinterpret_cast<__m512bh>(w[p][1]));
        }
      }
    }
    store_chains<R, P>(t.chains, acc);
  }
};

void gemm_bf16_dot(const GemmArgs& g) {
  gemm_blocks<DotProduct>(g);
}

KV_BF16_DOT void dot_pairs(const float* acc, const uint32_t* x, const uint32_t* w, float* out) {
  const auto a = reinterpret_cast<__m512bh>(_mm512_loadu_si512(x));
  const auto b = reinterpret_cast<__m512bh>(_mm512_loadu_si512(w));
  f_store(out, _mm512_dpbf16_ps(f_load(acc), a, b));
}

}  // namespace
}  // namespace kvasir::ops

#include "ops/cpu/body_table.h"

extern "C" {
const kvasir::ops::Bf16DotTable kvasir_bf16_dot_avx512 = {kvasir::ops::gemm_bf16_dot, kvasir::ops::dot_pairs};
const kvasir::ops::GemmFunction kvasir_gemm_int8_amx = kvasir::ops::gemm_int8_matrix;
const kvasir::ops::KernelTable kvasir_kernels_avx512 = kvasir::ops::kTable;
}
