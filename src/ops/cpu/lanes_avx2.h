// Sixteen lanes in two ymm registers. Included by kernels_avx2.cc only; see body_vector.h for the contract.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace kvasir::ops {
namespace {

struct F {
  __m256 a;  // lanes 0..7
  __m256 b;  // lanes 8..15
};

// Accumulators of a tile in attention, rows of a tile in the products of floats: what 16 registers hold.
constexpr int kTileF = 4;
constexpr int kFloatRows = 3;

// All ones in lane i where i < n, for lanes 0..7 of the half that begins at `first`.
inline __m256i lanes_below(int64_t n, int first) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n) - first), index);
}

inline F f_zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline F f_set1(float v) {
  return {_mm256_set1_ps(v), _mm256_set1_ps(v)};
}
inline F f_load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline F f_load_tail(const float* p, int64_t n) {
  return {_mm256_maskload_ps(p, lanes_below(n, 0)), _mm256_maskload_ps(p + 8, lanes_below(n, 8))};
}
inline void f_store(float* p, F v) {
  _mm256_storeu_ps(p, v.a);
  _mm256_storeu_ps(p + 8, v.b);
}
inline void f_store_tail(float* p, F v, int64_t n) {
  _mm256_maskstore_ps(p, lanes_below(n, 0), v.a);
  _mm256_maskstore_ps(p + 8, lanes_below(n, 8), v.b);
}
inline F f_keep_first(F v, int64_t n, F fill) {
  return {_mm256_blendv_ps(fill.a, v.a, _mm256_castsi256_ps(lanes_below(n, 0))),
          _mm256_blendv_ps(fill.b, v.b, _mm256_castsi256_ps(lanes_below(n, 8)))};
}

inline F f_add(F x, F y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
inline F f_sub(F x, F y) {
  return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
inline F f_mul(F x, F y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
inline F f_div(F x, F y) {
  return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
inline F f_fma(F x, F y, F z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline F f_fnma(F x, F y, F z) {
  return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
inline F f_max(F x, F y) {
  return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
inline F f_min(F x, F y) {
  return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
inline F f_abs(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline F f_select_less(F x, F y, F yes, F no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
inline __m256 power_of_two(__m256 t) {
  const __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3F800000)));
}
inline F f_power_of_two(F t) {
  return {power_of_two(t.a), power_of_two(t.b)};
}

inline F f_load_f16(const void* p) {
  const auto* half = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(half)), _mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
}
inline __m256 from_bf16(__m128i v) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
inline F f_load_bf16(const void* p) {
  const auto* half = static_cast<const __m128i*>(p);
  return {from_bf16(_mm_loadu_si128(half)), from_bf16(_mm_loadu_si128(half + 1))};
}
inline F f_load_i8(const void* p) {
  const __m128i v = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)))};
}
inline F f_pair_even(const void* line) {
  const auto* half = static_cast<const __m256i*>(line);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(half), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(half + 1), 16))};
}
inline F f_pair_odd(const void* line) {
  const auto* half = static_cast<const __m256i*>(line);
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(half), high)),
          _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(half + 1), high))};
}
inline __m256i set1_pair(const void* pair) {
  int32_t bits;
  __builtin_memcpy(&bits, pair, sizeof(bits));
  return _mm256_set1_epi32(bits);
}
inline F f_set1_even(const void* pair) {
  const __m256 v = _mm256_castsi256_ps(_mm256_slli_epi32(set1_pair(pair), 16));
  return {v, v};
}
inline F f_set1_odd(const void* pair) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
  const __m256 v = _mm256_castsi256_ps(_mm256_and_si256(set1_pair(pair), high));
  return {v, v};
}
// bf16 bits of eight lanes, each in a dword.
inline __m256i to_bf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i cut = _mm256_srli_epi32(bits, 16);
  const __m256i even = _mm256_and_si256(cut, _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(cut, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(_mm256_srli_epi32(half, 16), quiet, nan);
}
inline void f_store_bf16(void* p, F v) {
  // packus works within 128-bit halves, so the quarters are put back in order.
  const __m256i words = _mm256_packus_epi32(to_bf16(v.a), to_bf16(v.b));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, _MM_SHUFFLE(3, 1, 2, 0)));
}
inline __m256 from_bytes(__m256i v, int shift, int mask, int offset) {
  const __m256i field =
      _mm256_and_si256(_mm256_srl_epi32(v, _mm_cvtsi32_si128(shift)), _mm256_set1_epi32(mask));
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(field, _mm256_set1_epi32(offset)));
}
inline F f_from_bytes(const void* line, int shift, int mask, int offset) {
  const auto* half = static_cast<const __m256i*>(line);
  return {from_bytes(_mm256_loadu_si256(half), shift, mask, offset),
          from_bytes(_mm256_loadu_si256(half + 1), shift, mask, offset)};
}
// Sixteen integers as bytes; returns eight sums, each of two of them.
inline __m256i store_sixteen_i8(int8_t* p, F v) {
  const __m256i a = _mm256_cvtps_epi32(v.a);
  const __m256i b = _mm256_cvtps_epi32(v.b);
  // packs works within 128-bit halves, so the quarters are put back in order.
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), _MM_SHUFFLE(3, 1, 2, 0));
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  return _mm256_add_epi32(a, b);
}
inline int32_t f_store_i8(int8_t* p, F v) {
  const __m256i eight = store_sixteen_i8(p, v);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(1, 0, 3, 2)));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(2, 3, 0, 1)));
  return _mm_cvtsi128_si32(four);
}
inline void f_store_f16(void* p, F v) {
  auto* half = static_cast<__m128i*>(p);
  _mm_storeu_si128(half, _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128(half + 1, _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline float s_fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
inline float s_sqrt(float v) {
  return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(v)));
}

inline float f_tree_add(F v) {
  const __m256 half = _mm256_add_ps(v.a, v.b);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float f_tree_max(F v) {
  const __m256 half = _mm256_max_ps(v.a, v.b);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Four pairs rotated by four angles.
inline __m256 rotate_four(__m256 x, const float* cos, const float* sin) {
  const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  const __m256 c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cos)), twice);
  const __m256 s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sin)), twice);
  return _mm256_fmaddsub_ps(x, c, _mm256_mul_ps(_mm256_permute_ps(x, 0xB1), s));
}
inline F f_rotate_pairs(F x, const float* cos, const float* sin) {
  return {rotate_four(x.a, cos, sin), rotate_four(x.b, cos + 4, sin + 4)};
}

struct B {
  __m256i a;  // bytes 0..31
  __m256i b;  // bytes 32..63
};

inline B b_load(const uint8_t* p) {
  const auto* half = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(half), _mm256_loadu_si256(half + 1)};
}
inline void b_store(uint8_t* p, B v) {
  auto* half = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(half, v.a);
  _mm256_storeu_si256(half + 1, v.b);
}
inline B b_and(B v, int mask) {
  const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
  return {_mm256_and_si256(v.a, m), _mm256_and_si256(v.b, m)};
}
inline B b_or(B v, B w) {
  return {_mm256_or_si256(v.a, w.a), _mm256_or_si256(v.b, w.b)};
}
template <int kRight>
inline B b_shift(B v) {
  if constexpr (kRight > 0) return {_mm256_srli_epi16(v.a, kRight), _mm256_srli_epi16(v.b, kRight)};
  if constexpr (kRight < 0) return {_mm256_slli_epi16(v.a, -kRight), _mm256_slli_epi16(v.b, -kRight)};
  return v;
}
inline B b_lookup(const uint8_t* table, B v) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(t, v.a), _mm256_shuffle_epi8(t, v.b)};
}

}  // namespace
}  // namespace kvasir::ops
