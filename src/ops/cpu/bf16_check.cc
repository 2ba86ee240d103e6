// The fixed cases of the check, and two fma to judge them by.
#include "ops/cpu/bf16_check.h"

#include <bit>
#include <cmath>

#include "base/random.h"
#include "ops/cpu/isa.h"
#include "ops/numerics.h"

namespace kvasir::ops {
namespace {

constexpr int kWidth = 16;
constexpr int kBatches = 128;

struct Cases {
  float acc[kWidth];
  uint32_t x[kWidth];
  uint32_t w[kWidth];
};

// A finite bf16 with an exponent field of [low, high] and any sign and fraction.
uint32_t element(Random& random, int64_t low, int64_t high) {
  const auto exponent = static_cast<uint32_t>(random.between(low, high));
  return static_cast<uint32_t>(random.bits() & 0x807F) | exponent << 7;
}

uint32_t pair(uint32_t even, uint32_t odd) {
  return odd << 16 | even;
}

float any_float(Random& random, int64_t low, int64_t high) {
  const uint32_t fraction = static_cast<uint32_t>(random.bits()) & 0xFFFF;
  return std::bit_cast<float>(element(random, low, high) << 16 | fraction);
}

// Zeros, the ends of the subnormals and of the normals, one, infinity; with either sign.
uint32_t corner(Random& random) {
  constexpr uint32_t kCorners[] = {0x0000, 0x0001, 0x007F, 0x0080, 0x0081, 0x3F80, 0x7F7F, 0x7F80};
  return kCorners[random.below(8)] | static_cast<uint32_t>(random.bits() & 0x8000);
}

void fill(Random& random, int kind, Cases& c) {
  for (int i = 0; i < kWidth; ++i) {
    uint32_t x0 = element(random, 120, 134), x1 = element(random, 120, 134);
    uint32_t w0 = element(random, 120, 134), w1 = element(random, 120, 134);
    float acc = any_float(random, 112, 142);
    switch (kind) {
      case 0:  // values as models have them
        break;
      case 1:  // the whole range
        x0 = element(random, 0, 254), x1 = element(random, 0, 254);
        w0 = element(random, 0, 254), w1 = element(random, 0, 254);
        acc = any_float(random, 0, 254);
        break;
      case 2:  // the products cancel, nearly or wholly, so that the order and each rounding show
        x1 = x0 ^ 0x8000u;
        w1 = w0 ^ static_cast<uint32_t>(random.below(4));
        break;
      case 3:  // the accumulator cancels the first product
        acc = -bf16_to_f32(static_cast<uint16_t>(x1)) * bf16_to_f32(static_cast<uint16_t>(w1));
        break;
      case 4:  // results about the smallest normal
        x0 = element(random, 60, 66), x1 = element(random, 60, 66);
        w0 = element(random, 60, 66), w1 = element(random, 60, 66);
        acc = any_float(random, 0, 3);
        break;
      case 5:  // subnormal elements beside large ones
        x0 = element(random, 0, 1), w1 = element(random, 0, 1);
        w0 = element(random, 240, 254), x1 = element(random, 240, 254);
        acc = any_float(random, 100, 130);
        break;
      case 6:  // subnormal accumulators alone
        x0 = x1 = static_cast<uint32_t>(random.bits() & 0x8000);
        acc = any_float(random, 0, 1);
        break;
      default:
        x0 = corner(random), x1 = corner(random), w0 = corner(random), w1 = corner(random);
        acc = std::bit_cast<float>(corner(random) << 16);
    }
    c.x[i] = pair(x0, x1);
    c.w[i] = pair(w0, w1);
    c.acc[i] = acc;
  }
}

float even_of(uint32_t bits) {
  return bf16_to_f32(static_cast<uint16_t>(bits));
}
float odd_of(uint32_t bits) {
  return bf16_to_f32(static_cast<uint16_t>(bits >> 16));
}

bool same(float want, float got) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
  return std::bit_cast<uint32_t>(want) == std::bit_cast<uint32_t>(got);
}

void two_fma(const float* acc, const uint32_t* x, const uint32_t* w, float* out) {
  for (int i = 0; i < kWidth; ++i) {
    const float first = std::fma(odd_of(x[i]), odd_of(w[i]), acc[i]);
    out[i] = std::fma(even_of(x[i]), even_of(w[i]), first);
  }
}

}  // namespace

bool gives_pair_chain(DotPairs dot) {
  // Through volatile pointers: neither side may be computed ahead, under another mode.
  const volatile DotPairs judge = two_fma;
  const volatile DotPairs judged = dot;
  Random random(1);
  for (int batch = 0; batch < kBatches; ++batch) {
    Cases c;
    fill(random, batch % 8, c);
    float want[kWidth], got[kWidth];
    {
      const FlushToZero mode;
      judge(c.acc, c.x, c.w, want);
      judged(c.acc, c.x, c.w, got);
    }
    for (int i = 0; i < kWidth; ++i) {
      if (!same(want[i], got[i])) return false;
    }
  }
  return true;
}

}  // namespace kvasir::ops
