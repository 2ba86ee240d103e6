// The scalar functions of the GPU's numerics, one text for the host and the device.
//
// Each is a fixed sequence of IEEE operations: what is fused says fmaf, division and root are correctly
// rounded, subnormals are kept. Compiled with -ffp-contract=off on a host and -fmad=false -ftz=false
// -prec-div=true -prec-sqrt=true by nvcc, both give the same bits (of what is not a number, only that it is
// none). Pure.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define KV_BOTH __host__ __device__ __forceinline__
#else
#define KV_BOTH inline
#endif

namespace kvasir::ops {

KV_BOTH uint32_t bits_of(float x) {
  uint32_t bits = 0;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}
KV_BOTH float float_of(uint32_t bits) {
  float x = 0;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

KV_BOTH float bf16_value(uint16_t bits) {
  return float_of(static_cast<uint32_t>(bits) << 16);
}
// To nearest even; what is not a number stays so (quiet).
KV_BOTH uint16_t round_bf16(float x) {
#if defined(__CUDA_ARCH__)
  uint16_t rounded = 0;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(x));
  return rounded;
#else
  const uint32_t bits = bits_of(x);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
#endif
}
// Two of them, the first in the low half.
KV_BOTH uint32_t round_bf16_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t pair = 0;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return static_cast<uint32_t>(round_bf16(low)) | (static_cast<uint32_t>(round_bf16(high)) << 16);
#endif
}

// a if it is larger, else b.
KV_BOTH float larger(float a, float b) {
  return a > b ? a : b;
}

// exp2_of(x). REQUIRES: x <= 127, or it is not a number
KV_BOTH float exp2_at_most(float x) {
  constexpr float kRoundToInteger = 12582912.0F;  // 1.5 * 2^23: the sum's low bits are then the integer
  const float t = x + kRoundToInteger;
  const float r = x - (t - kRoundToInteger);
  float p = fmaf(0x1.5bba0ep-10F, r, 0x1.3cea88p-7F);
  p = fmaf(p, r, 0x1.c6b704p-5F);
  p = fmaf(p, r, 0x1.ebf9b8p-3F);
  p = fmaf(p, r, 0x1.62e42ap-1F);
  p = fmaf(p, r, 1.0F);
  const float power = float_of((bits_of(t) << 23) + 0x3F800000U);
  return x < -126.0F ? 0.0F : p * power;
}
// 2^x, relative error below 2e-7: 2^0 = 1 exactly, +0 below -126 and at -infinity, 2^127 from 127 on.
KV_BOTH float exp2_of(float x) {
  return exp2_at_most(x > 127.0F ? 127.0F : x);
}

constexpr double kLog2EInDouble = 0x1.71547652b82fep+0;

// x / (1 + e^-x)
KV_BOTH float silu(float x) {
  constexpr float kFactor = static_cast<float>(-kLog2EInDouble);
  return x / (1.0F + exp2_of(x * kFactor));
}
// GELU by tanh: x * sigmoid(2u), u = sqrt(2 / pi) * (x + 0.044715 x^3).
KV_BOTH float gelu(float x) {
  constexpr double kLinear = -2 * kLog2EInDouble * 0x1.9884533d43651p-1;
  constexpr float kC1 = static_cast<float>(kLinear), kC3 = static_cast<float>(0.044715 * kLinear);
  return x / (1.0F + exp2_of(x * fmaf(x * x, kC3, kC1)));
}

// limit * tanh(x / limit); both numbers are those of reference::Cap. limit 0: none.
struct Cap {
  float limit = 0;
  float factor = 0;
};
KV_BOTH float capped(float x, Cap cap) {
  return cap.limit * (1.0F - 2.0F / (1.0F + exp2_of(x * cap.factor)));
}

}  // namespace kvasir::ops
