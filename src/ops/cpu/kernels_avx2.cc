// The kernels for AVX2 with FMA and F16C.
#include "ops/cpu/kernel_table.h"
#include "ops/cpu/lanes_avx2.h"
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

// Two 16-bit accumulators a row for sixteen columns, beside weights, constants and activation, in 16
// registers.
constexpr TileHeights tile_heights(int) {
  return {3, 1, 1};
}

// Without a dot-product instruction bytes are multiplied and added in pairs in 16 bits, and sums of pairs are
// added there for as many quads of k as fit: pairs of values below 16 (at most 2 * 15 * 127) eight times,
// below 32 four times, below 64 twice. Values of 8 bits are taken as two nibbles.
constexpr int quads_in_16_bits(const WeightTraits& t) {
  if (t.offset == 128) return 0;
  const int bits = t.lookup != nullptr ? 5 : t.low_bits + t.high_bits;
  return bits == 6 ? 2 : bits == 5 || t.scales == 2 ? 4 : 8;
}
// 1: with a minimum, and without an offset; 2: two scales in a group; 4 times the quads.
constexpr int int8_form(const WeightTraits& t) {
  return (t.has_min ? 1 : 0) + (t.scales == 2 ? 2 : 0) + 4 * quads_in_16_bits(t);
}

inline __m256i broadcast_quad(const int8_t* q) {
  int32_t v;
  __builtin_memcpy(&v, q, sizeof(v));
  return _mm256_set1_epi32(v);
}
// Sums of pairs to sums of four, one per column.
inline __m256i widen_pairs(__m256i pairs) {
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

inline F to_floats(const __m256i* sums) {
  return {_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])};
}

enum class Part { kWhole, kLow, kHigh };  // of a byte

// Sums of pairs in 16 bits of R rows with columns 16 kHalf.. over quads [kQuad, kEnd) of a group.
template <int kQuad, int kEnd, int kHalf, Part kPart, int R, typename Source>
KV_INLINE void pair_sums(const Source& source, int64_t group, const int8_t* q, int64_t k,
                         __m256i (*sums)[2]) {
  if constexpr (kQuad < kEnd) {
    B w = source.template bytes<kQuad, kHalf>(group);
    if constexpr (kPart == Part::kHigh) w = b_shift<4>(w);
    if constexpr (kPart != Part::kWhole) w = b_and(w, 15);
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256i a = broadcast_quad(q + r * k + 4 * kQuad);
      sums[r][0] = _mm256_add_epi16(sums[r][0], _mm256_maddubs_epi16(w.a, a));
      sums[r][1] = _mm256_add_epi16(sums[r][1], _mm256_maddubs_epi16(w.b, a));
    }
    pair_sums<kQuad + 1, kEnd, kHalf, kPart, R>(source, group, q, k, sums);
  }
}

// total += exact sums over quads [kQuad, kEnd), kQuads at a time.
template <int kQuad, int kEnd, int kHalf, int kQuads, Part kPart, int R, typename Source>
KV_INLINE void quad_sums(const Source& source, int64_t group, const int8_t* q, int64_t k,
                         __m256i (*total)[2]) {
  if constexpr (kQuad < kEnd) {
    __m256i sums[R][2];
    KV_UNROLL
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    pair_sums<kQuad, kQuad + kQuads, kHalf, kPart, R>(source, group, q, k, sums);
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      KV_UNROLL
      for (int c = 0; c < 2; ++c) {
        __m256i wide = widen_pairs(sums[r][c]);
        if constexpr (kPart == Part::kHigh) wide = _mm256_slli_epi32(wide, 4);
        total[r][c] = _mm256_add_epi32(total[r][c], wide);
      }
    }
    quad_sums<kQuad + kQuads, kEnd, kHalf, kQuads, kPart, R>(source, group, q, k, total);
  }
}

template <int kBegin, int kEnd, int kHalf, int kQuads, int R, typename Source>
KV_INLINE void int8_sums(const Source& source, int64_t group, const int8_t* q, int64_t k,
                         __m256i (*total)[2]) {
  if constexpr (kQuads == 0) {
    quad_sums<kBegin, kEnd, kHalf, 8, Part::kLow, R>(source, group, q, k, total);
    quad_sums<kBegin, kEnd, kHalf, 8, Part::kHigh, R>(source, group, q, k, total);
  } else {
    quad_sums<kBegin, kEnd, kHalf, kQuads, Part::kWhole, R>(source, group, q, k, total);
  }
}

// R rows and columns 16 kHalf...
template <int kForm, int R, int kHalf, typename Source>
inline void int8_slice(const Int8Tile& t, const Source& source) {
  constexpr bool kMin = kForm % 2 == 1, kTwo = kForm / 2 % 2 == 1;
  constexpr int kQuads = kForm / 4;
  constexpr int64_t kAt = 16 * kHalf;
  Ahead ahead = source.ahead();
  for (int64_t g = 0; g < t.groups; ++g) {
    const int8_t* q = t.q + g * kGroup;
    if constexpr (kHalf == 0) source.fetch(ahead, g);
    __m256i total[R][2];
    F sum[R];
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const int32_t start = kMin ? 0 : kTwo ? t.half_start(r, g, 0) : t.start(r, g);
      total[r][0] = total[r][1] = _mm256_set1_epi32(start);
    }
    int8_sums<0, kTwo ? 4 : 8, kHalf, kQuads, R>(source, g, q, t.k, total);
    const auto from = source.scales(g);
    if constexpr (kTwo) {
      const F first = from.scale(0, kAt);
      KV_UNROLL
      for (int r = 0; r < R; ++r) {
        sum[r] = f_mul(first, to_floats(total[r]));
        total[r][0] = total[r][1] = _mm256_set1_epi32(kMin ? 0 : t.half_start(r, g, 1));
      }
      int8_sums<4, 8, kHalf, kQuads, R>(source, g, q, t.k, total);
    }
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const F da = f_set1(t.scale(r, g));
      float* chain = t.chains + r * kPanel + kAt;
      F acc = f_load(chain);
      if constexpr (kTwo) {
        F both = f_fma(from.scale(1, kAt), to_floats(total[r]), sum[r]);
        if constexpr (kMin) {
          both = f_fma(from.minimum(0, kAt), f_set1(t.half_sum(r, g, 0)), both);
          both = f_fma(from.minimum(1, kAt), f_set1(t.half_sum(r, g, 1)), both);
        }
        acc = f_fma(da, both, acc);
      } else {
        acc = f_fma(f_mul(from.scale(0, kAt), da), to_floats(total[r]), acc);
        if constexpr (kMin) acc = f_fma(from.minimum(0, kAt), f_set1(t.moment(r, g)), acc);
      }
      f_store(chain, acc);
    }
  }
}

template <int kForm, int R, typename Source>
inline void int8_tile(const Int8Tile& t, const Source& source) {
  int8_slice<kForm, R, 0>(t, source);
  int8_slice<kForm, R, 1>(t, source);
}

}  // namespace
}  // namespace kvasir::ops

#include "ops/cpu/body_gemm_int8.h"
#include "ops/cpu/body_table.h"

extern "C" {
const kvasir::ops::KernelTable kvasir_kernels_avx2 = kvasir::ops::kTable;
}
