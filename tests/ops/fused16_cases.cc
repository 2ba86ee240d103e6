#include "fused16_cases.h"

#include <bit>

#include "base/random.h"
#include "ops/numerics.h"

namespace kvasir::ops {
namespace {

constexpr uint64_t kSeed = 16;
// More than a case draws.
constexpr uint64_t kDrawsOfCase = 256;

// A finite bf16 with an exponent field of [low, high], and any sign and fraction.
uint16_t element(Random& random, uint64_t low, uint64_t high) {
  const uint64_t bits = random.bits();
  const uint64_t field = low + (bits >> 32) % (high - low + 1);
  return static_cast<uint16_t>((bits & 0x807F) | (field << 7));
}

float number(Random& random, uint64_t low, uint64_t high) {
  const uint32_t upper = element(random, low, high);
  return std::bit_cast<float>((upper << 16) | static_cast<uint32_t>(random.bits() & 0xFFFF));
}

// Exponent fields of the elements of a and b, and of the accumulator, by kind.
struct Range {
  uint64_t a_low, a_high, b_low, b_high, acc_low, acc_high;
};
constexpr Range kRanges[kFused16Kinds] = {
    {120, 130, 116, 130, 110, 140},  // 0: values as models have them
    {0, 190, 0, 190, 0, 254},        // 1: nearly the whole range
    {120, 130, 120, 130, 100, 127},  // 2: products cancel in pairs, nearly or wholly
    {110, 124, 110, 124, 0, 0},      // 3: the accumulator cancels the first product, the largest
    {55, 66, 55, 66, 0, 8},          // 4: results about the smallest normal
    {0, 1, 240, 254, 100, 130},      // 5: subnormal elements beside large ones
    {0, 120, 0, 120, 0, 1},          // 6: mostly zeros
    {184, 189, 184, 189, 240, 254},  // 7: results about the largest number
    {120, 130, 120, 130, 120, 130},  // 8: one or two elements of the ends of the format
    {96, 127, 96, 127, 96, 127},     // 9: far apart, so that much is cut
    {100, 120, 100, 120, 127, 140},  // 10: an accumulator above all products
    {127, 127, 127, 127, 120, 127},  // 11: the largest sums
};

// Zeros, the ends of the subnormals and of the normals, one, infinity, what is not a number; with either
// sign.
uint16_t corner(Random& random) {
  constexpr uint16_t kCorners[] = {0x0000, 0x0001, 0x007F, 0x0080, 0x3F80, 0x7F7F, 0x7F80, 0x7F81};
  const uint64_t bits = random.bits();
  return static_cast<uint16_t>(kCorners[(bits >> 32) % 8] | (bits & 0x8000));
}

void alter(uint64_t kind, Random& random, Fused16Case& c) {
  switch (kind) {
    case 2:
      for (int i = 0; i < kFusedProducts; i += 2) {
        c.a[i + 1] = c.a[i] ^ 0x8000;
        c.b[i + 1] = c.b[i] ^ static_cast<uint16_t>(random.below(3));
      }
      break;
    case 3:
      c.a[0] = element(random, 130, 132);
      c.accumulator = -bf16_to_f32(c.a[0]) * bf16_to_f32(c.b[0]);
      break;
    case 6:
      for (int i = 0; i < kFusedProducts; ++i) {
        if (random.below(4) != 0) c.a[i] &= 0x8000;
        if (random.below(4) != 0) c.b[i] &= 0x8000;
      }
      if (random.below(2) == 0) c.accumulator = random.below(2) == 0 ? 0.0f : -0.0f;
      break;
    case 8:
      for (uint64_t left = 1 + random.below(2); left > 0; --left) {
        const uint64_t place = random.below(2 * kFusedProducts + 1);
        if (place < kFusedProducts) {
          c.a[place] = corner(random);
        } else if (place < 2 * kFusedProducts) {
          c.b[place - kFusedProducts] = corner(random);
        } else {
          c.accumulator = std::bit_cast<float>(static_cast<uint32_t>(corner(random)) << 16);
        }
      }
      break;
    case 11:
      for (int i = 0; i < kFusedProducts; ++i) {
        if (random.below(8) != 0) c.a[i] = 0x3FFF;
        if (random.below(8) != 0) c.b[i] = 0x3FFF;
      }
      break;
    default:
      break;
  }
}

}  // namespace

Fused16Case fused16_case(uint64_t index) {
  Random random(kSeed, index * kDrawsOfCase);
  const uint64_t kind = index % kFused16Kinds;
  const Range& range = kRanges[kind];
  Fused16Case c;
  c.accumulator = number(random, range.acc_low, range.acc_high);
  for (int i = 0; i < kFusedProducts; ++i) {
    c.a[i] = element(random, range.a_low, range.a_high);
    c.b[i] = element(random, range.b_low, range.b_high);
  }
  alter(kind, random, c);
  return c;
}

std::vector<IsaClass> supported_sets() {
  std::vector<IsaClass> out;
  for (const IsaClass isa : {IsaClass::kPortable, IsaClass::kAvx2, IsaClass::kAvx512}) {
    if (is_supported(isa)) out.push_back(isa);
  }
  return out;
}

}  // namespace kvasir::ops
