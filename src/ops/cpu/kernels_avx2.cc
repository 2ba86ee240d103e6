// The kernels for AVX2 with FMA and F16C.
#include "ops/cpu/kernel_table.h"
#include "ops/cpu/lanes_avx2.h"
#define KV_OPS_LANES
#include "ops/cpu/body_vector.h"
// After the lanes and the helpers that they use.
#include "ops/cpu/body_attention.h"
#include "ops/cpu/body_gemm.h"
#include "ops/cpu/body_gemm_float.h"
#include "ops/cpu/body_kv.h"

namespace kvasir::ops {
namespace {

// Two 16-bit accumulators a row for sixteen columns, beside weights, mask and activation, in 16 registers.
constexpr int kInt8Rows = 3;

// Without a dot-product instruction: bytes are taken as nibbles, for which pairs (at most 2 * 15 * 127) and
// sums of eight pairs fit 16 bits, so nothing saturates. For 4-bit types low and high are columns c and
// c + 16; for kQ8_0 they are two halves of one column's byte.
struct Nibbles {
  __m256i low;
  __m256i high;
};

inline Nibbles load_nibbles(const uint8_t* line) {
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line));
  return {_mm256_and_si256(v, mask), _mm256_and_si256(_mm256_srli_epi16(v, 4), mask)};
}
inline __m256i broadcast_quad(const int8_t* q) {
  int32_t v;
  __builtin_memcpy(&v, q, sizeof(v));
  return _mm256_set1_epi32(v);
}
inline __m256 load_eight_f16(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// Sums of pairs to sums of four, one per column.
inline __m256i widen(__m256i pairs) {
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

// acc of eight columns += the group's term, as kernels.h says. isum is exact.
template <WeightType T>
inline __m256 add_group(__m256 acc, __m256i isum, const uint8_t* scales, float da, float moment) {
  const __m256 a = _mm256_set1_ps(da);
  acc = _mm256_fmadd_ps(_mm256_mul_ps(load_eight_f16(scales), a), _mm256_cvtepi32_ps(isum), acc);
  if constexpr (T == WeightType::kQ4_1) {
    acc = _mm256_fmadd_ps(load_eight_f16(scales + kLineBytes), _mm256_set1_ps(moment), acc);
  }
  return acc;
}

// A slice of a panel, R rows into C-shaped sums. 4-bit: columns 8s .. 8s + 7 and 16 more (s = 0, 1);
// kQ8_0: columns 8s .. 8s + 7 (s = 0..3), and out[r][1] stays zero.
template <WeightType T, int R>
inline void gemm_int8_slice(const GemmArgs& g, int64_t row, int64_t panel, int slice, Ahead ahead,
                            __m256 (*out)[2]) {
  constexpr bool kBytes = T == WeightType::kQ8_0;
  constexpr int64_t kValueLines = kBytes ? 16 : 8;
  constexpr int64_t kGroupBytes = (kValueLines + (T == WeightType::kQ4_1 ? 2 : 1)) * kLineBytes;
  constexpr int32_t kOffset = kBytes ? 128 : T == WeightType::kQ4_0 ? 8 : 0;
  const int64_t row_groups = g.a.k / kGroup;
  const uint8_t* lines = g.w.data + panel * g.panel_stride;
  __m256 acc[R][2];
  KV_UNROLL
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
  for (int64_t i = 0; i < g.groups; ++i, lines += kGroupBytes) {
    fetch_ahead<kGroupBytes>(ahead, i, lines);
    __m256i low[R], high[R];
    KV_UNROLL
    for (int r = 0; r < R; ++r) low[r] = high[r] = _mm256_setzero_si256();
    const int8_t* q = g.a.q + row * g.a.k + i * kGroup;
    KV_UNROLL
    for (int quad = 0; quad < 8; ++quad) {
      const int64_t at = (kBytes ? 2 * quad : quad) * kLineBytes + slice * 32;
      const Nibbles w = load_nibbles(lines + at);
      KV_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m256i a = broadcast_quad(q + r * g.a.k + 4 * quad);
        low[r] = _mm256_add_epi16(low[r], _mm256_maddubs_epi16(w.low, a));
        high[r] = _mm256_add_epi16(high[r], _mm256_maddubs_epi16(w.high, a));
      }
    }
    const uint8_t* scales = lines + kValueLines * kLineBytes + slice * 16;
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const int64_t group = (row + r) * row_groups + i;
      const float moment = g.a.moments[group];
      const float da = s_from_f16(g.a.d[group]);
      const __m256i offset = _mm256_set1_epi32(kOffset * g.a.sums[group]);
      if constexpr (kBytes) {
        const __m256i both = _mm256_add_epi32(widen(low[r]), _mm256_slli_epi32(widen(high[r]), 4));
        acc[r][0] = add_group<T>(acc[r][0], _mm256_sub_epi32(both, offset), scales, da, moment);
      } else {
        acc[r][0] = add_group<T>(acc[r][0], _mm256_sub_epi32(widen(low[r]), offset), scales, da, moment);
        acc[r][1] =
            add_group<T>(acc[r][1], _mm256_sub_epi32(widen(high[r]), offset), scales + 32, da, moment);
      }
    }
  }
  KV_UNROLL
  for (int r = 0; r < R; ++r) {
    out[r][0] = acc[r][0];
    out[r][1] = acc[r][1];
  }
}

template <WeightType T, int R>
void gemm_int8_tile(const GemmArgs& g, int64_t row, int64_t panel, int64_t columns, const Ahead& ahead) {
  // [row][8 columns at a time]
  __m256 sums[R][4];
  __m256 part[R][2];
  if constexpr (T == WeightType::kQ8_0) {
    for (int s = 0; s < 4; ++s) {
      gemm_int8_slice<T, R>(g, row, panel, s, s == 0 ? ahead : Ahead{}, part);
      for (int r = 0; r < R; ++r) sums[r][s] = part[r][0];
    }
  } else {
    for (int s = 0; s < 2; ++s) {
      gemm_int8_slice<T, R>(g, row, panel, s, s == 0 ? ahead : Ahead{}, part);
      for (int r = 0; r < R; ++r) {
        sums[r][s] = part[r][0];
        sums[r][s + 2] = part[r][1];
      }
    }
  }
  float* c = g.c + row * g.ldc + panel * kPanel;
  for (int r = 0; r < R; ++r) {
    store_columns(c + r * g.ldc, {sums[r][0], sums[r][1]}, {sums[r][2], sums[r][3]}, columns, g.accumulate);
  }
}

}  // namespace
}  // namespace kvasir::ops

#include "ops/cpu/body_gemm_int8.h"
#include "ops/cpu/body_table.h"

extern "C" {
const kvasir::ops::KernelTable kvasir_kernels_avx2 = kvasir::ops::kTable;
}
