// Sixteen lanes in one zmm register. Included by kernels_avx512.cc only; see body_vector.h for the contract.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace kvasir::ops {
namespace {

using F = __m512;

// Accumulators of a tile in attention, rows of a tile in the products of floats: what 32 registers hold.
constexpr int kTileF = 16;
constexpr int kFloatRows = 12;

inline __mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>((1u << n) - 1u);
}

inline F f_zero() {
  return _mm512_setzero_ps();
}
inline F f_set1(float v) {
  return _mm512_set1_ps(v);
}
inline F f_load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline F f_load_tail(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
inline void f_store(float* p, F v) {
  _mm512_storeu_ps(p, v);
}
inline void f_store_tail(float* p, F v, int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), v);
}
inline F f_keep_first(F v, int64_t n, F fill) {
  return _mm512_mask_mov_ps(fill, first_lanes(n), v);
}

inline F f_add(F a, F b) {
  return _mm512_add_ps(a, b);
}
inline F f_sub(F a, F b) {
  return _mm512_sub_ps(a, b);
}
inline F f_mul(F a, F b) {
  return _mm512_mul_ps(a, b);
}
inline F f_div(F a, F b) {
  return _mm512_div_ps(a, b);
}
inline F f_fma(F a, F b, F c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline F f_fnma(F a, F b, F c) {
  return _mm512_fnmadd_ps(a, b, c);
}
inline F f_max(F a, F b) {
  return _mm512_max_ps(a, b);
}
inline F f_min(F a, F b) {
  return _mm512_min_ps(a, b);
}
inline F f_abs(F a) {
  return _mm512_abs_ps(a);
}
inline F f_select_less(F a, F b, F yes, F no) {
  return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), yes);
}
inline F f_power_of_two(F t) {
  const __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3F800000)));
}

inline F f_load_f16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline F f_load_bf16(const void* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline F f_load_i8(const void* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
}
inline F f_pair_even(const void* line) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(line), 16));
}
inline F f_pair_odd(const void* line) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(line), high));
}
inline __m512i set1_pair(const void* pair) {
  int32_t bits;
  __builtin_memcpy(&bits, pair, sizeof(bits));
  return _mm512_set1_epi32(bits);
}
inline F f_set1_even(const void* pair) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(set1_pair(pair), 16));
}
inline F f_set1_odd(const void* pair) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  return _mm512_castsi512_ps(_mm512_and_si512(set1_pair(pair), high));
}
inline void f_store_bf16(void* p, F v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i cut = _mm512_srli_epi32(bits, 16);
  const __m512i even = _mm512_and_si512(cut, _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i rounded =
      _mm512_mask_or_epi32(_mm512_srli_epi32(half, 16), nan, cut, _mm512_set1_epi32(0x40));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(rounded));
}
inline F f_from_bytes(const void* line, int shift, int mask, int offset) {
  const __m512i v = _mm512_srl_epi32(_mm512_loadu_si512(line), _mm_cvtsi32_si128(shift));
  const __m512i field = _mm512_and_si512(v, _mm512_set1_epi32(mask));
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(field, _mm512_set1_epi32(offset)));
}
inline int32_t f_store_i8(int8_t* p, F v) {
  const __m512i q = _mm512_cvtps_epi32(v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(q));
  return _mm512_reduce_add_epi32(q);
}
inline void f_store_f16(void* p, F v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p),
                      _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline float s_fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
inline float s_sqrt(float v) {
  return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(v)));
}

inline float f_tree_add(F v) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float f_tree_max(F v) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Eight pairs rotated by eight angles.
inline F f_rotate_pairs(F x, const float* cos, const float* sin) {
  const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  const F c = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(cos)));
  const F s = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(sin)));
  return _mm512_fmaddsub_ps(x, c, _mm512_mul_ps(_mm512_permute_ps(x, 0xB1), s));
}

using B = __m512i;

inline B b_load(const uint8_t* p) {
  return _mm512_loadu_si512(p);
}
inline void b_store(uint8_t* p, B v) {
  _mm512_storeu_si512(p, v);
}
inline B b_and(B v, int mask) {
  return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask)));
}
inline B b_sub(B v, int byte) {
  return _mm512_sub_epi8(v, _mm512_set1_epi8(static_cast<char>(byte)));
}
inline B b_or(B v, B w) {
  return _mm512_or_si512(v, w);
}
template <int kRight>
inline B b_shift(B v) {
  if constexpr (kRight > 0) return _mm512_srli_epi16(v, kRight);
  if constexpr (kRight < 0) return _mm512_slli_epi16(v, -kRight);
  return v;
}
inline B b_lookup(const uint8_t* table, B v) {
  const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), v);
}

}  // namespace
}  // namespace kvasir::ops
