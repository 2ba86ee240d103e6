// Sixteen lanes as an array, for any CPU. Included by kernels_portable.cc only; see body_vector.h for the
// contract. fmaf is correctly rounded by definition, so the bits are those of the vector instructions.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "ops/numerics.h"

namespace kvasir::ops {
namespace {

struct F {
  float v[16];
};

// Accumulators of a tile in attention, rows of a tile in the products of floats.
constexpr int kTileF = 2;
constexpr int kFloatRows = 2;

template <typename Lane>
inline F each(Lane lane) {
  F r;
  for (int i = 0; i < 16; ++i) r.v[i] = lane(i);
  return r;
}

inline F f_set1(float v) {
  return each([&](int) { return v; });
}
inline F f_zero() {
  return f_set1(0.0f);
}
inline F f_load(const float* p) {
  return each([&](int i) { return p[i]; });
}
inline F f_load_tail(const float* p, int64_t n) {
  return each([&](int i) { return i < n ? p[i] : 0.0f; });
}
inline void f_store(float* p, const F& v) {
  std::memcpy(p, v.v, sizeof(v.v));
}
inline void f_store_tail(float* p, const F& v, int64_t n) {
  std::memcpy(p, v.v, static_cast<size_t>(n) * sizeof(float));
}
inline F f_keep_first(const F& v, int64_t n, const F& fill) {
  return each([&](int i) { return i < n ? v.v[i] : fill.v[i]; });
}

inline F f_add(const F& a, const F& b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline F f_sub(const F& a, const F& b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
inline F f_mul(const F& a, const F& b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
inline F f_div(const F& a, const F& b) {
  return each([&](int i) { return a.v[i] / b.v[i]; });
}
inline F f_fma(const F& a, const F& b, const F& c) {
  return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline F f_fnma(const F& a, const F& b, const F& c) {
  return each([&](int i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); });
}
inline F f_max(const F& a, const F& b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F f_min(const F& a, const F& b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F f_abs(const F& a) {
  return each([&](int i) { return std::fabs(a.v[i]); });
}
inline F f_select_less(const F& a, const F& b, const F& yes, const F& no) {
  return each([&](int i) { return a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; });
}
inline F f_power_of_two(const F& t) {
  return each([&](int i) {
    uint32_t bits;
    std::memcpy(&bits, &t.v[i], sizeof(bits));
    bits = (bits << 23) + 0x3F800000u;
    float r;
    std::memcpy(&r, &bits, sizeof(r));
    return r;
  });
}

inline uint16_t u16_at(const void* p, int i) {
  uint16_t v;
  std::memcpy(&v, static_cast<const uint8_t*>(p) + 2 * i, sizeof(v));
  return v;
}
inline F f_load_f16(const void* p) {
  return each([&](int i) { return f16_to_f32(u16_at(p, i)); });
}
inline F f_load_bf16(const void* p) {
  return each([&](int i) { return bf16_to_f32(u16_at(p, i)); });
}
inline F f_load_i8(const void* p) {
  return each([&](int i) { return static_cast<float>(static_cast<const int8_t*>(p)[i]); });
}
inline F f_pair_even(const void* line) {
  return each([&](int i) { return bf16_to_f32(u16_at(line, 2 * i)); });
}
inline F f_pair_odd(const void* line) {
  return each([&](int i) { return bf16_to_f32(u16_at(line, 2 * i + 1)); });
}
inline F f_set1_even(const void* pair) {
  return f_set1(bf16_to_f32(u16_at(pair, 0)));
}
inline F f_set1_odd(const void* pair) {
  return f_set1(bf16_to_f32(u16_at(pair, 1)));
}
inline void f_store_bf16(void* p, const F& v) {
  for (int i = 0; i < 16; ++i) {
    const uint16_t bits = f32_to_bf16(v.v[i]);
    std::memcpy(static_cast<uint8_t*>(p) + 2 * i, &bits, sizeof(bits));
  }
}
inline F f_from_bytes(const void* line, int shift, int mask, int offset) {
  // The shift never crosses a byte: 8 j for bytes, 8 j and 8 j + 4 for nibbles.
  const auto* bytes = static_cast<const uint8_t*>(line) + shift / 8;
  return each([&](int i) { return static_cast<float>(((bytes[4 * i] >> (shift % 8)) & mask) - offset); });
}
inline int32_t f_store_i8(int8_t* p, const F& v) {
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) {
    // 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the low bits of the
    // significand.
    const float shifted = v.v[i] + 12582912.0f;
    p[i] = static_cast<int8_t>(shifted - 12582912.0f);
    sum += p[i];
  }
  return sum;
}
inline void f_store_f16(void* p, const F& v) {
  for (int i = 0; i < 16; ++i) {
    const uint16_t bits = f32_to_f16(v.v[i]);
    std::memcpy(static_cast<uint8_t*>(p) + 2 * i, &bits, sizeof(bits));
  }
}
inline float s_fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
inline float s_sqrt(float v) {
  return std::sqrt(v);
}

inline float f_tree_add(F v) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v.v[i] += v.v[i + width];
  }
  return v.v[0];
}
inline float f_tree_max(F v) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v.v[i] = v.v[i] > v.v[i + width] ? v.v[i] : v.v[i + width];
  }
  return v.v[0];
}

// Eight pairs rotated by eight angles.
inline F f_rotate_pairs(const F& x, const float* cos, const float* sin) {
  F r;
  for (int i = 0; i < 8; ++i) {
    const float x0 = x.v[2 * i];
    const float x1 = x.v[2 * i + 1];
    r.v[2 * i] = __builtin_fmaf(x0, cos[i], -(x1 * sin[i]));
    r.v[2 * i + 1] = __builtin_fmaf(x1, cos[i], x0 * sin[i]);
  }
  return r;
}

struct B {
  uint8_t v[64];
};

template <typename Byte>
inline B each_byte(Byte byte) {
  B r;
  for (int i = 0; i < 64; ++i) r.v[i] = static_cast<uint8_t>(byte(i));
  return r;
}
inline B b_load(const uint8_t* p) {
  B r;
  std::memcpy(r.v, p, sizeof(r.v));
  return r;
}
inline void b_store(uint8_t* p, const B& v) {
  std::memcpy(p, v.v, sizeof(v.v));
}
inline B b_and(const B& v, int mask) {
  return each_byte([&](int i) { return v.v[i] & mask; });
}
inline B b_or(const B& v, const B& w) {
  return each_byte([&](int i) { return v.v[i] | w.v[i]; });
}
template <int kRight>
inline B b_shift(const B& v) {
  return each_byte([&](int i) { return kRight >= 0 ? v.v[i] >> (kRight & 7) : v.v[i] << (-kRight & 7); });
}
inline B b_lookup(const uint8_t* table, const B& v) {
  return each_byte([&](int i) { return table[v.v[i]]; });
}

}  // namespace
}  // namespace kvasir::ops
