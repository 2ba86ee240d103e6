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

namespace kvasir::ops {
namespace {

// Two integer and two float accumulators a row fill 24 of the 32 registers; the rest hold weights, scales and
// the activation that is being broadcast.
constexpr int kInt8Rows = 6;
// 1: with a minimum, and without an offset; 2: two scales in a group.
constexpr int int8_form(const WeightTraits& t) {
  return (t.has_min ? 1 : 0) + (t.scales == 2 ? 2 : 0);
}

inline __m512i broadcast_quad(const int8_t* q) {
  int32_t v;
  __builtin_memcpy(&v, q, sizeof(v));
  return _mm512_set1_epi32(v);
}

// Exact integer sums of R rows with 32 columns over quads [kQuad, kEnd) of a group. q: the group's.
template <int kQuad, int kEnd, int R, typename Source>
inline void quad_sums(const Source& source, int64_t group, const int8_t* q, int64_t k, __m512i (*dot)[2]) {
  if constexpr (kQuad < kEnd) {
    const __m512i left = source.template bytes<kQuad, 0>(group);
    const __m512i right = source.template bytes<kQuad, 1>(group);
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512i a = broadcast_quad(q + r * k + 4 * kQuad);
      dot[r][0] = _mm512_dpbusd_epi32(dot[r][0], left, a);
      dot[r][1] = _mm512_dpbusd_epi32(dot[r][1], right, a);
    }
    quad_sums<kQuad + 1, kEnd, R>(source, group, q, k, dot);
  }
}

// One scale in each group.
template <bool kMin, int R, typename Source>
inline void int8_groups(const Int8Tile& t, const Source& source) {
  F acc[R][2];
  KV_UNROLL
  for (int r = 0; r < R; ++r) {
    acc[r][0] = f_load(t.chains + r * kPanel);
    acc[r][1] = f_load(t.chains + r * kPanel + 16);
  }
  for (int64_t g = 0; g < t.groups; ++g) {
    __m512i dot[R][2];
    KV_UNROLL
    for (int r = 0; r < R; ++r) dot[r][0] = dot[r][1] = _mm512_set1_epi32(kMin ? 0 : t.start(r, g));
    source.fetch_ahead_of(g);
    quad_sums<0, 8, R>(source, g, t.q + g * kGroup, t.k, dot);
    const auto from = source.scales(g);
    const F scale[2] = {from.scale(0), from.scale(16)};
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const F da = f_set1(t.scale(r, g));
      KV_UNROLL
      for (int h = 0; h < 2; ++h) {
        acc[r][h] = f_fma(f_mul(scale[h], da), _mm512_cvtepi32_ps(dot[r][h]), acc[r][h]);
      }
    }
    if constexpr (kMin) {
      const F minimum[2] = {from.minimum(0), from.minimum(16)};
      KV_UNROLL
      for (int r = 0; r < R; ++r) {
        const F moment = f_set1(t.moment(r, g));
        KV_UNROLL
        for (int h = 0; h < 2; ++h) acc[r][h] = f_fma(minimum[h], moment, acc[r][h]);
      }
    }
  }
  KV_UNROLL
  for (int r = 0; r < R; ++r) {
    f_store(t.chains + r * kPanel, acc[r][0]);
    f_store(t.chains + r * kPanel + 16, acc[r][1]);
  }
}

// A scale for each half of a group: both halves of the sum are exact as floats, and so is their sum.
template <bool kMin, int R, typename Source>
inline void int8_half_groups(const Int8Tile& t, const Source& source) {
  for (int64_t g = 0; g < t.groups; ++g) {
    __m512i dot[R][2];
    F sum[R][2];
    KV_UNROLL
    for (int r = 0; r < R; ++r) dot[r][0] = dot[r][1] = _mm512_set1_epi32(kMin ? 0 : t.half_start(r, g, 0));
    source.fetch_ahead_of(g);
    quad_sums<0, 4, R>(source, g, t.q + g * kGroup, t.k, dot);
    const auto from = source.scales(g);
    const F first[2] = {from.half_scale(0, 0), from.half_scale(0, 16)};
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512i start = _mm512_set1_epi32(kMin ? 0 : t.half_start(r, g, 1));
      KV_UNROLL
      for (int h = 0; h < 2; ++h) {
        sum[r][h] = f_mul(first[h], _mm512_cvtepi32_ps(dot[r][h]));
        dot[r][h] = start;
      }
    }
    quad_sums<4, 8, R>(source, g, t.q + g * kGroup, t.k, dot);
    KV_UNROLL
    for (int h = 0; h < 2; ++h) {
      const F second = from.half_scale(1, 16 * h), d = from.d(16 * h);
      KV_UNROLL
      for (int r = 0; r < R; ++r) {
        const F da = f_set1(t.scale(r, g));
        float* chain = t.chains + r * kPanel + 16 * h;
        const F both = f_fma(second, _mm512_cvtepi32_ps(dot[r][h]), sum[r][h]);
        F acc = f_fma(f_mul(d, da), both, f_load(chain));
        if constexpr (kMin) {
          F moment = f_mul(from.half_minimum(0, 16 * h), f_set1(static_cast<float>(t.sum(r, g, 0))));
          moment = f_fma(from.half_minimum(1, 16 * h), f_set1(static_cast<float>(t.sum(r, g, 1))), moment);
          acc = f_fma(f_mul(from.min(16 * h), da), moment, acc);
        }
        f_store(chain, acc);
      }
    }
  }
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
