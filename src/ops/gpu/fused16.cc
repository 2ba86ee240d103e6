#include "ops/gpu/fused16.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>

#include "base/mutant.h"

namespace kvasir::ops {
namespace {

constexpr int kFractionBits = 25;
constexpr int kLeastExponent = -133;
constexpr uint32_t kInfinity = 0x7F800000u;
constexpr uint32_t kNotANumber = 0x7FFFFFFFu;

// A finite bf16 or f32 as (negative ? -1 : 1) * significand * 2^(exponent - fraction bits of its type).
struct Parts {
  uint64_t significand;
  int exponent;
  bool negative;
};

Parts parts_of(uint32_t bits, int fraction_bits) {
  const uint32_t field = (bits >> fraction_bits) & 0xFFu;
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const uint32_t hidden = field == 0 ? 0 : 1u << fraction_bits;
  return {fraction | hidden, std::max(static_cast<int>(field), 1) - 127,
          ((bits >> (fraction_bits + 8)) & 1u) != 0};
}

// significand * 2^(exponent - kFractionBits), with its sign.
struct Summand {
  int64_t significand;
  int exponent;
};

Summand summand(uint64_t significand, int fraction_bits, int exponent, bool negative) {
  const auto scaled = static_cast<int64_t>(significand << (kFractionBits - fraction_bits));
  return {negative ? -scaled : scaled, significand == 0 ? kLeastExponent : exponent};
}

// Cut toward zero, as division does.
int64_t shifted_right(int64_t significand, int places) {
  return significand / (int64_t{1} << std::min(places, 62));
}

// sum * 2^(exponent - fraction_bits), cut toward zero.
float cut_to_float(int64_t sum, int exponent, int fraction_bits) {
  if (sum == 0) return 0.0f;
  const uint32_t sign = sum < 0 ? 0x80000000u : 0;
  const auto magnitude = static_cast<uint64_t>(std::abs(sum));
  const int top = std::bit_width(magnitude) - 1;
  const int result = exponent - fraction_bits + top;  // magnitude is in [2^result, 2^(result + 1))
  if (result > 127) return std::bit_cast<float>(sign | kInfinity);
  // The last place of the result is worth 2^last.
  const int last = std::max(result, -126) - 23;
  const int places = last - (exponent - fraction_bits);
  const auto kept = static_cast<uint32_t>(places >= 0 ? magnitude >> places : magnitude << -places);
  if (kept == 0) return 0.0f;
  const uint32_t field = result < -126 ? 0 : static_cast<uint32_t>(result + 127);
  return std::bit_cast<float>(sign | (field << 23) | (kept & 0x7FFFFFu));
}

bool is_zero(uint16_t bits) {
  return (bits & 0x7FFFu) == 0;
}
bool is_infinite(uint16_t bits) {
  return (bits & 0x7FFFu) == 0x7F80u;
}
bool is_nan(uint16_t bits) {
  return (bits & 0x7FFFu) > 0x7F80u;
}

// The infinities among the summands, and whether the result is not a number whatever their signs.
struct Specials {
  bool positive = false, negative = false, nan = false;
  void add(bool is_negative) { (is_negative ? negative : positive) = true; }
};

Specials specials_of(uint32_t accumulator, const uint16_t* a, const uint16_t* b, size_t products) {
  Specials s;
  for (size_t i = 0; i < products; ++i) {
    if (is_nan(a[i]) || is_nan(b[i])) s.nan = true;
    if (!is_infinite(a[i]) && !is_infinite(b[i])) continue;
    if (is_zero(a[i]) || is_zero(b[i])) s.nan = true;
    s.add(((a[i] ^ b[i]) & 0x8000u) != 0);
  }
  const uint32_t magnitude = accumulator & 0x7FFFFFFFu;
  if (magnitude > kInfinity) s.nan = true;
  if (magnitude == kInfinity) s.add((accumulator >> 31) != 0);
  return s;
}

float fused(float accumulator, const uint16_t* a, const uint16_t* b, size_t products) {
  const auto bits = std::bit_cast<uint32_t>(accumulator);
  const Specials s = specials_of(bits, a, b, products);
  if (s.nan || (s.positive && s.negative)) return std::bit_cast<float>(kNotANumber);
  if (s.positive || s.negative) return std::bit_cast<float>(kInfinity | (s.negative ? 0x80000000u : 0));

  const Parts c = parts_of(bits, 23);
  const Summand own = summand(c.significand, 23, c.exponent, c.negative);
  std::array<Summand, kFusedProducts> summands;
  int exponent = std::max(kLeastExponent, own.exponent);
  for (size_t i = 0; i < products; ++i) {
    const Parts x = parts_of(a[i], 7), y = parts_of(b[i], 7);
    summands[i] =
        summand(x.significand * y.significand, 14, x.exponent + y.exponent, x.negative != y.negative);
    exponent = std::max(exponent, summands[i].exponent);
  }
  // Not 0 under a mutant only: places that the accumulator keeps and the products do not.
  const int more = mutant(Mutant::kFusedAccumulatorUncut) ? 24 : 0;
  const int fewer = mutant(Mutant::kFusedTo24Bits) ? 1 : 0;
  const auto cut = [&](int64_t significand, const Summand& of) {
    return shifted_right(significand, exponent - of.exponent + fewer);
  };
  int64_t sum = cut(own.significand << more, own);
  for (size_t i = 0; i < products; ++i) sum += cut(summands[i].significand, summands[i]) << more;
  return cut_to_float(sum, exponent, kFractionBits - fewer + more);
}

}  // namespace

float fused16(float accumulator, const uint16_t* a, const uint16_t* b) {
  if (!mutant(Mutant::kFusedBy8)) return fused(accumulator, a, b, kFusedProducts);
  return fused(fused(accumulator, a, b, 8), a + 8, b + 8, 8);
}

}  // namespace kvasir::ops
