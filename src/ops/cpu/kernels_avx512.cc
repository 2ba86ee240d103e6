// The kernels for AVX-512 with VNNI.
#include "ops/cpu/kernel_table.h"
#include "ops/cpu/lanes_avx512.h"
#define KV_OPS_LANES
#include "ops/cpu/body_vector.h"
// After the lanes and the helpers that they use.
#include "ops/cpu/body_attention.h"
#include "ops/cpu/body_gemm.h"
#include "ops/cpu/body_gemm_float.h"
#include "ops/cpu/body_kv.h"

namespace kvasir::ops {
namespace {

// Two integer and two float accumulators a row fill 24 of the 32 registers; the rest hold weights, scales and
// the activation that is being broadcast.
constexpr int kInt8Rows = 6;

inline __m512i broadcast_quad(const int8_t* q) {
  int32_t v;
  __builtin_memcpy(&v, q, sizeof(v));
  return _mm512_set1_epi32(v);
}
inline F broadcast_f16(const uint16_t* d) {
  return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<int16_t>(*d)));
}

// The two operands of quad i: columns 0..15 and 16..31, four k each.
template <WeightType T>
inline void load_weights(const uint8_t* lines, int i, __m512i* left, __m512i* right) {
  if constexpr (T == WeightType::kQ8_0) {
    *left = _mm512_loadu_si512(lines + 2 * i * kLineBytes);
    *right = _mm512_loadu_si512(lines + (2 * i + 1) * kLineBytes);
  } else {
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i v = _mm512_loadu_si512(lines + i * kLineBytes);
    *left = _mm512_and_si512(v, low);
    *right = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
  }
}

template <WeightType T, int R>
void gemm_int8_tile(const GemmArgs& g, int64_t row, int64_t panel, int64_t columns, Ahead ahead) {
  constexpr int64_t kValueLines = T == WeightType::kQ8_0 ? 16 : 8;
  constexpr int64_t kGroupBytes = (kValueLines + (T == WeightType::kQ4_1 ? 2 : 1)) * kLineBytes;
  constexpr int32_t kOffset = T == WeightType::kQ8_0 ? 128 : T == WeightType::kQ4_0 ? 8 : 0;
  const int64_t k = g.a.k;
  const int64_t row_groups = k / kGroup;
  const uint8_t* lines = g.w.data + panel * g.panel_stride;
  const int8_t* q = g.a.q + row * k;
  const uint16_t* d = g.a.d + row * row_groups;
  const int32_t* sums = g.a.sums + row * row_groups;
  const float* moments = g.a.moments + row * row_groups;
  F acc[R][2];
  KV_UNROLL
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = f_zero();
  for (int64_t i = 0; i < g.groups; ++i, lines += kGroupBytes, q += kGroup, ++d, ++sums, ++moments) {
    fetch_ahead<kGroupBytes>(ahead, i, lines);
    __m512i dot[R][2];
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      dot[r][0] = dot[r][1] =
          kOffset == 0 ? _mm512_setzero_si512() : _mm512_set1_epi32(-kOffset * sums[r * row_groups]);
    }
    KV_UNROLL
    for (int quad = 0; quad < 8; ++quad) {
      __m512i left, right;
      load_weights<T>(lines, quad, &left, &right);
      KV_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512i a = broadcast_quad(q + r * k + 4 * quad);
        dot[r][0] = _mm512_dpbusd_epi32(dot[r][0], left, a);
        dot[r][1] = _mm512_dpbusd_epi32(dot[r][1], right, a);
      }
    }
    const uint8_t* tail = lines + kValueLines * kLineBytes;
    const F d0 = f_load_f16(tail);
    const F d1 = f_load_f16(tail + 32);
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const F da = broadcast_f16(d + r * row_groups);
      acc[r][0] = f_fma(f_mul(d0, da), _mm512_cvtepi32_ps(dot[r][0]), acc[r][0]);
      acc[r][1] = f_fma(f_mul(d1, da), _mm512_cvtepi32_ps(dot[r][1]), acc[r][1]);
      if constexpr (T == WeightType::kQ4_1) {
        const F moment = f_set1(moments[r * row_groups]);
        acc[r][0] = f_fma(f_load_f16(tail + kLineBytes), moment, acc[r][0]);
        acc[r][1] = f_fma(f_load_f16(tail + kLineBytes + 32), moment, acc[r][1]);
      }
    }
  }
  float* c = g.c + row * g.ldc + panel * kPanel;
  for (int r = 0; r < R; ++r) store_columns(c + r * g.ldc, acc[r][0], acc[r][1], columns, g.accumulate);
}

}  // namespace
}  // namespace kvasir::ops

#include "ops/cpu/body_gemm_int8.h"

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
const kvasir::ops::KernelTable kvasir_kernels_avx512 = kvasir::ops::kTable;
}
