// The kernels over rows, written once over sixteen lanes.
//
// Each kernels_<isa>.cc includes its lanes_<isa>.h and then this file. The lanes give a type F and operations
// that are exact IEEE ones lane by lane (f_max is a > b ? a : b, f_min is a < b ? a : b), so the order of
// operations, and with it every bit, is fixed here. They also give a type B of 64 bytes; b_shift may move
// bits from one byte into another, which the caller masks off. All of it is in an unnamed namespace: code
// compiled for a wider instruction set must not be visible to the linker under a name that other files share.
#pragma once

#include <cstdint>

// The lanes come first: this file is not a header of its own.
#ifndef KV_OPS_LANES
#error "include a lanes header and define KV_OPS_LANES before this file"
#endif

#if defined(KVASIR_SANITIZED)
#define KV_UNROLL  // a third of the build's time for nothing
#elif defined(__clang__)
#define KV_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KV_UNROLL _Pragma("GCC unroll 16")
#endif

// Of a tile's inner loop: not inlined, registers would pass through memory. The compiler's own limits depend
// on what else a source holds.
#if defined(KVASIR_SANITIZED)
#define KV_INLINE inline
#else
#define KV_INLINE inline __attribute__((always_inline))
#endif

namespace kvasir::ops {
namespace {

// Calls step(offset, count) for 16 elements at a time; count is below 16 for the tail only.
template <typename Step>
inline void for_lanes(int64_t n, Step step) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) step(i, int64_t{16});
  if (i < n) step(i, n - i);
}
inline F load_up_to(const float* p, int64_t count) {
  return count == 16 ? f_load(p) : f_load_tail(p, count);
}
inline void store_up_to(float* p, const F& v, int64_t count) {
  if (count == 16) {
    f_store(p, v);
  } else {
    f_store_tail(p, v, count);
  }
}

// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2. exp(r) = 1 + r + r^2 q(r) with q of degree 4,
// interpolated at Chebyshev nodes (error 1.1e-8). Adding 1.5 * 2^23 rounds to an integer and leaves it where
// f_power_of_two finds it. Below -87 the result is cut to +0 before it could be subnormal.
inline F exp_lanes(F x) {
  const F magic = f_set1(12582912.0f);
  const F one = f_set1(1.0f);
  const F y = f_min(f_set1(88.0f), x);
  const F t = f_fma(y, f_set1(0x1.715476p+0f), magic);
  const F n = f_sub(t, magic);
  F r = f_fnma(n, f_set1(0x1.63p-1f), y);
  r = f_fnma(n, f_set1(-0x1.bd0106p-13f), r);
  F p = f_fma(f_set1(0x1.6d113cp-10f), r, f_set1(0x1.120ba2p-7f));
  p = f_fma(p, r, f_set1(0x1.55551ap-5f));
  p = f_fma(p, r, f_set1(0x1.5554dcp-3f));
  p = f_fma(p, r, f_set1(0.5f));
  p = f_fma(p, r, one);
  p = f_fma(p, r, one);
  return f_select_less(x, f_set1(-87.0f), f_zero(), f_mul(p, f_power_of_two(t)));
}

// How sixteen groups of values, each with its largest magnitude, become int8: q = round(x * factor).
struct Int8Scales {
  uint16_t bits[16];             // f16
  F scale;                       // the same
  alignas(64) float factor[16];  // 1 / scale; 0: all q are 0
};
inline Int8Scales int8_scales(F amax) {
  Int8Scales s;
  f_store_f16(s.bits, f_min(f_div(amax, f_set1(127.0f)), f_set1(65504.0f)));
  s.scale = f_load_f16(s.bits);
  f_store(s.factor, f_select_less(f_zero(), s.scale, f_div(f_set1(1.0f), s.scale), f_zero()));
  return s;
}
// What f_store_i8 takes. The first f_max turns NaN into -127.
inline F to_int8_range(F x, float factor) {
  const F q = f_min(f_max(f_mul(x, f_set1(factor)), f_set1(-127.0f)), f_set1(127.0f));
  return factor == 0.0f ? f_zero() : q;
}

// Sixteen groups at a time, so that their scales are computed side by side.
void quantize_row(const float* x, int64_t k, int8_t* q, float* scales, int16_t* sums, float* moments) {
  for_lanes(k / kGroup, [&](int64_t first, int64_t count) {
    alignas(64) float amax[16] = {}, sum[16] = {};
    for (int64_t g = 0; g < count; ++g) {
      const float* from = x + (first + g) * kGroup;
      // NaN loses every comparison with the second operand, so it is not in the maximum.
      amax[g] = f_tree_max(f_max(f_abs(f_load(from + 16)), f_max(f_abs(f_load(from)), f_zero())));
    }
    const Int8Scales of = int8_scales(f_load(amax));
    store_up_to(scales + first, of.scale, count);
    for (int64_t g = 0; g < count; ++g) {
      const float* from = x + (first + g) * kGroup;
      const float factor = of.factor[g];
      int32_t total = 0;
      for (int64_t half = 0; half < 2; ++half) {
        const int32_t part =
            f_store_i8(q + (first + g) * kGroup + 16 * half, to_int8_range(f_load(from + 16 * half), factor));
        sums[2 * (first + g) + 1] = static_cast<int16_t>(-part);  // the second half's stays
        total += part;
      }
      sums[2 * (first + g)] = static_cast<int16_t>(-total);
      sum[g] = static_cast<float>(total);
    }
    store_up_to(moments + first, f_mul(of.scale, f_load(sum)), count);
  });
}

// Padded with +0 to an even length, so that the last pair is whole.
void round_row_bf16(const float* x, int64_t k, uint16_t* out) {
  for_lanes(k, [&](int64_t i, int64_t count) {
    uint16_t part[16];
    f_store_bf16(part, load_up_to(x + i, count));
    __builtin_memcpy(out + i, part, static_cast<size_t>(count) * sizeof(uint16_t));
  });
  if (k % 2 != 0) out[k] = 0;
}

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  F sums = f_zero();
  for_lanes(n, [&](int64_t i, int64_t count) {
    const F v = load_up_to(x + i, count);
    sums = f_fma(v, v, sums);
  });
  const float mean = f_tree_add(sums) / static_cast<float>(n);
  const F inverse = f_set1(1.0f / s_sqrt(mean + eps));
  for_lanes(n, [&](int64_t i, int64_t count) {
    const F v = f_mul(load_up_to(x + i, count), inverse);
    store_up_to(out + i, f_mul(v, load_up_to(weight + i, count)), count);
  });
}

void layer_norm(const float* x, const float* weight, const float* bias, int64_t n, float eps, float* out) {
  F sums = f_zero();
  for_lanes(n, [&](int64_t i, int64_t count) { sums = f_add(sums, load_up_to(x + i, count)); });
  const F mean = f_set1(f_tree_add(sums) / static_cast<float>(n));
  F squares = f_zero();
  for_lanes(n, [&](int64_t i, int64_t count) {
    const F v = f_sub(load_up_to(x + i, count), mean);
    const F seen = count == 16 ? v : f_keep_first(v, count, f_zero());
    squares = f_fma(seen, seen, squares);
  });
  const F inverse = f_set1(1.0f / s_sqrt(f_tree_add(squares) / static_cast<float>(n) + eps));
  for_lanes(n, [&](int64_t i, int64_t count) {
    const F v = f_mul(f_sub(load_up_to(x + i, count), mean), inverse);
    const F weighed = f_mul(v, load_up_to(weight + i, count));
    store_up_to(out + i, bias == nullptr ? weighed : f_add(weighed, load_up_to(bias + i, count)), count);
  });
}

void rope(float* x, int64_t heads, int64_t head_dim, const float* cos, const float* sin, int64_t half) {
  for (int64_t head = 0; head < heads; ++head) {
    float* row = x + head * head_dim;
    int64_t i = 0;
    for (; i + 8 <= half; i += 8) f_store(row + 2 * i, f_rotate_pairs(f_load(row + 2 * i), cos + i, sin + i));
    for (; i < half; ++i) {
      const float x0 = row[2 * i];
      const float x1 = row[2 * i + 1];
      row[2 * i] = s_fma(x0, cos[i], -(x1 * sin[i]));
      row[2 * i + 1] = s_fma(x1, cos[i], x0 * sin[i]);
    }
  }
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
  const F one = f_set1(1.0f);
  for_lanes(n, [&](int64_t i, int64_t count) {
    const F g = load_up_to(gate + i, count);
    const F silu = f_div(g, f_add(one, exp_lanes(f_sub(f_set1(-0.0f), g))));
    store_up_to(out + i, f_mul(silu, load_up_to(up + i, count)), count);
  });
}

// GELU by tanh is x * sigmoid(2u), u = sqrt(2 / pi) * (x + 0.044715 x^3).
void gelu_mul(const float* gate, const float* up, int64_t n, float* out) {
  const F one = f_set1(1.0f);
  for_lanes(n, [&](int64_t i, int64_t count) {
    const F g = load_up_to(gate + i, count);
    const F slope = f_fma(f_mul(g, g), f_set1(-0x1.2444f2p-4f), f_set1(-0x1.988454p+0f));
    const F gelu = f_div(g, f_add(one, exp_lanes(f_mul(g, slope))));
    store_up_to(out + i, f_mul(gelu, load_up_to(up + i, count)), count);
  });
}

void clamped_swiglu(const float* gate, const float* up, float slope, float limit, int64_t n, float* out) {
  const F one = f_set1(1.0f), most = f_set1(limit), least = f_set1(-limit), factor = f_set1(-slope);
  for_lanes(n, [&](int64_t i, int64_t count) {
    const F g = f_min(most, load_up_to(gate + i, count));
    const F u = f_max(least, f_min(most, load_up_to(up + i, count)));
    const F swish = f_div(g, f_add(one, exp_lanes(f_mul(g, factor))));
    store_up_to(out + i, f_mul(swish, f_add(u, one)), count);
  });
}

// tanh(y) = 1 - 2 / (1 + exp(2y)).
inline F cap_lanes(F x, F factor, F cap) {
  const F one = f_set1(1.0f);
  const F y = f_mul(x, factor);
  return f_mul(cap, f_sub(one, f_div(f_set1(2.0f), f_add(one, exp_lanes(y)))));
}

void cap(const float* x, float limit, int64_t n, float* out) {
  const F factor = f_set1(2.0f / limit), most = f_set1(limit);
  for_lanes(n, [&](int64_t i, int64_t count) {
    store_up_to(out + i, cap_lanes(load_up_to(x + i, count), factor, most), count);
  });
}

void add(const float* a, const float* b, int64_t n, float* out) {
  for_lanes(n, [&](int64_t i, int64_t count) {
    store_up_to(out + i, f_add(load_up_to(a + i, count), load_up_to(b + i, count)), count);
  });
}

void scale(const float* x, float factor, int64_t n, float* out) {
  const F f = f_set1(factor);
  for_lanes(
      n, [&](int64_t i, int64_t count) { store_up_to(out + i, f_mul(load_up_to(x + i, count), f), count); });
}

void add_scaled(const float* x, float factor, int64_t n, float* out) {
  const F f = f_set1(factor);
  for_lanes(n, [&](int64_t i, int64_t count) {
    store_up_to(out + i, f_fma(load_up_to(x + i, count), f, load_up_to(out + i, count)), count);
  });
}

void exp_shifted(const float* x, float shift, int64_t n, float* out) {
  const F s = f_set1(shift);
  for_lanes(n, [&](int64_t i, int64_t count) {
    store_up_to(out + i, exp_lanes(f_sub(load_up_to(x + i, count), s)), count);
  });
}

void softmax_stats(const float* x, int64_t n, float* max, float* sum) {
  const F lowest = f_set1(-__builtin_inff());
  F m = lowest;
  for_lanes(n, [&](int64_t i, int64_t count) {
    const F v = load_up_to(x + i, count);
    m = f_max(count == 16 ? v : f_keep_first(v, count, lowest), m);
  });
  *max = f_tree_max(m);
  const F shift = f_set1(*max);
  F sums = f_zero();
  for_lanes(n, [&](int64_t i, int64_t count) {
    const F e = exp_lanes(f_sub(load_up_to(x + i, count), shift));
    sums = f_add(sums, count == 16 ? e : f_keep_first(e, count, f_zero()));
  });
  *sum = f_tree_add(sums);
}

}  // namespace
}  // namespace kvasir::ops
