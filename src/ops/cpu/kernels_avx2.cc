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
#include "ops/cpu/body_kv.h"

namespace kvasir::ops {
namespace {

// Two 16-bit accumulators a row for sixteen columns, beside weights, constants and activation, in 16
// registers.
constexpr int kInt8Rows = 3;

// Without a dot-product instruction bytes are multiplied and added in pairs in 16 bits, and sums of pairs are
// added there for as many quads of k as fit: pairs of values below 16 (at most 2 * 15 * 127) eight times,
// below 32 four times, below 64 twice. Values of 8 bits are taken as two nibbles.
constexpr int quads_in_16_bits(const WeightTraits& t) {
  if (t.low_bits == 8 || t.lookup) return 0;
  const int bits = t.low_bits + t.high_bits;
  return bits == 6 ? 2 : bits == 5 || t.scales == 2 ? 4 : 8;
}
// 1: with a minimum; 2: two scales in a group; 4 times the quads.
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

// Where a tile has the bytes of its weights from: unpacked before, or unpacked on the way.
struct Unpacked {
  const UnpackedGroups& weights;
  void fetch_ahead_of(int64_t) const {}
  template <int kQuad, int kHalf>
  B bytes(int64_t group) const {
    return b_load(weights.values[group][2 * kQuad + kHalf]);
  }
};
template <WeightType T>
struct Packed {
  const uint8_t* lines;
  void fetch_ahead_of(int64_t group) const { fetch_group<T>(lines, group + kBlockGroups); }
  template <int kQuad, int kHalf>
  B bytes(int64_t group) const {
    return unpack_bytes<T, kQuad, kHalf>(lines + group * GroupPlaces<T>::kStride);
  }
};

enum class Part { kWhole, kLow, kHigh };  // of a byte

// Sums of pairs in 16 bits of R rows with columns 16 kHalf.. over quads [kQuad, kEnd) of a group.
template <int kQuad, int kEnd, int kHalf, Part kPart, int R, typename Source>
inline void pair_sums(const Source& source, int64_t group, const int8_t* q, int64_t k, __m256i (*sums)[2]) {
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
inline void quad_sums(const Source& source, int64_t group, const int8_t* q, int64_t k, __m256i (*total)[2]) {
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
inline void int8_sums(const Source& source, int64_t group, const int8_t* q, int64_t k, __m256i (*total)[2]) {
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
  const UnpackedGroups& w = *t.weights;
  for (int64_t g = 0; g < t.groups; ++g) {
    const int8_t* q = t.q + g * kGroup;
    if constexpr (kHalf == 0 && R == 1) source.fetch_ahead_of(g);
    __m256i total[R][2];
    __m256 sum[R][2];
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      KV_UNROLL
      for (int c = 0; c < 2; ++c) total[r][c] = _mm256_set1_epi32(t.starts[r][kTwo ? 2 * g : g]);
    }
    int8_sums<0, kTwo ? 4 : 8, kHalf, kQuads, R>(source, g, q, t.k, total);
    if constexpr (kTwo) {
      KV_UNROLL
      for (int r = 0; r < R; ++r) {
        KV_UNROLL
        for (int c = 0; c < 2; ++c) {
          sum[r][c] = _mm256_mul_ps(_mm256_load_ps(w.scales[g][0] + 16 * kHalf + 8 * c),
                                    _mm256_cvtepi32_ps(total[r][c]));
          total[r][c] = _mm256_set1_epi32(t.starts[r][2 * g + 1]);
        }
      }
      int8_sums<4, 8, kHalf, kQuads, R>(source, g, q, t.k, total);
    }
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256 da = _mm256_set1_ps(t.scales[r][g]);
      KV_UNROLL
      for (int c = 0; c < 2; ++c) {
        const int64_t at = 16 * kHalf + 8 * c;
        float* chain = t.chains + r * kPanel + at;
        const __m256 last = _mm256_cvtepi32_ps(total[r][c]);
        __m256 acc = _mm256_load_ps(chain);
        if constexpr (kTwo) {
          const __m256 both = _mm256_fmadd_ps(_mm256_load_ps(w.scales[g][1] + at), last, sum[r][c]);
          acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(w.d + at), da), both, acc);
          if constexpr (kMin) {
            __m256 moment =
                _mm256_mul_ps(_mm256_load_ps(w.mins[g][0] + at), _mm256_set1_ps(t.sums[r][2 * g]));
            moment = _mm256_fmadd_ps(_mm256_load_ps(w.mins[g][1] + at), _mm256_set1_ps(t.sums[r][2 * g + 1]),
                                     moment);
            acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(w.min + at), da), moment, acc);
          }
        } else {
          acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(w.scales[g][0] + at), da), last, acc);
          if constexpr (kMin) {
            const __m256 moment = _mm256_set1_ps(t.moments[r * t.row_groups + g]);
            acc = _mm256_fmadd_ps(_mm256_load_ps(w.scales[g][1] + at), moment, acc);
          }
        }
        _mm256_store_ps(chain, acc);
      }
    }
  }
}

template <int kForm, int R>
void int8_tile(const Int8Tile& t) {
  int8_slice<kForm, R, 0>(t, Unpacked{*t.weights});
  int8_slice<kForm, R, 1>(t, Unpacked{*t.weights});
}
template <WeightType T, int R>
void int8_packed_tile(const Int8Tile& t) {
  int8_slice<int8_form(kTraitsOf<T>), R, 0>(t, Packed<T>{t.lines});
  int8_slice<int8_form(kTraitsOf<T>), R, 1>(t, Packed<T>{t.lines});
}

}  // namespace
}  // namespace kvasir::ops

#include "ops/cpu/body_gemm_int8.h"
#include "ops/cpu/body_table.h"

extern "C" {
const kvasir::ops::KernelTable kvasir_kernels_avx2 = kvasir::ops::kTable;
}
