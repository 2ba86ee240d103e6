// Blocks of 32 without search.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "model/quantize/group_fit.h"
#include "model/quantize/search_blocks.h"
#include "ops/weight_traits.h"

namespace kvasir {
namespace {

constexpr int kValues = 32;

// Writes a number as f16. False: it does not fit.
bool put_f16(float value, uint8_t* out) {
  const uint16_t bits = ops::f32_to_f16(value);
  std::memcpy(out, &bits, 2);
  return (bits & 0x7C00) != 0x7C00;
}

// What codes are multiplied with in place of a division.
float inverse_of(float d) {
  const float inverse = 1 / d;
  return d == 0 || std::isinf(inverse) ? 0 : inverse;
}

// The fifth bits: bit i of a word of 32 belongs to code i.
void put_fifth_bits(const uint8_t* codes, uint8_t* out) {
  uint32_t word = 0;
  for (int i = 0; i < kValues; ++i) word |= static_cast<uint32_t>(codes[i] >> 4) << i;
  std::memcpy(out, &word, 4);
}
void put_four_or_five_bits(bool fifth, const uint8_t* codes, uint8_t* out) {
  if (fifth) {
    put_fifth_bits(codes, out);
    out += 4;
  }
  put_nibbles(codes, out);
}

float largest_of(const float* x) {
  return x[largest_in({x, kValues})];
}

bool quantize_q8_0(const float* x, uint8_t* out) {
  const float d = std::fabs(largest_of(x)) / 127;
  const float inverse = inverse_of(d);
  for (int i = 0; i < kValues; ++i) {
    const float v = x[i] * inverse, magnitude = std::fabs(v), whole = std::floor(magnitude);
    const float rounded = whole + std::floor(2 * (magnitude - whole));
    out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(v < 0 ? -rounded : rounded));
  }
  return put_f16(d, out);
}

bool quantize_symmetric(bool fifth, const float* x, uint8_t* out) {
  const float n = fifth ? 16 : 8;
  const float d = largest_of(x) / -n;
  const float inverse = inverse_of(d);
  uint8_t codes[kValues];
  for (int i = 0; i < kValues; ++i) {
    codes[i] = static_cast<uint8_t>(std::min(x[i] * inverse + (n + 0.5F), 2 * n - 1));
  }
  put_four_or_five_bits(fifth, codes, out + 2);
  return put_f16(d, out);
}

bool quantize_from_minimum(bool fifth, const float* x, uint8_t* out) {
  const float n = fifth ? 31 : 15;
  const auto [low, high] = std::minmax_element(x, x + kValues);
  const float d = (*high - *low) / n;
  if (!put_f16(d, out) || !put_f16(*low, out + 2)) return false;
  const float inverse = inverse_of(d);
  uint8_t codes[kValues];
  for (int i = 0; i < kValues; ++i) {
    codes[i] = static_cast<uint8_t>(std::min((x[i] - *low) * inverse + 0.5F, n));
  }
  put_four_or_five_bits(fifth, codes, out + 4);
  return true;
}

// The largest value is 4 to 8 times the scale of the format, which is twice `d`; the nearest codes.
bool quantize_mxfp4(const float* x, uint8_t* out) {
  const float largest = std::fabs(largest_of(x));
  out[0] = largest > 0 ? static_cast<uint8_t>(std::max(std::ilogb(largest) - 2 + 127, 0)) : 0;
  const float d = std::ldexp(1.0F, out[0] - 128);
  uint8_t codes[kValues];
  for (int i = 0; i < kValues; ++i) {
    float least = std::numeric_limits<float>::infinity();
    for (uint8_t code = 0; code < 16; ++code) {
      const float off = std::fabs(d * static_cast<float>(ops::kMxfp4Lookup[code] - 16) - x[i]);
      if (off < least) codes[i] = code;
      least = std::min(least, off);
    }
  }
  put_nibbles(codes, out + 1);
  return true;
}

}  // namespace

void put_nibbles(const uint8_t* codes, uint8_t* out) {
  for (int i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
}

bool quantize_plain_block(ops::WeightType type, const float* x, uint8_t* out) {
  switch (type) {
    case ops::WeightType::kQ8_0:
      return quantize_q8_0(x, out);
    case ops::WeightType::kQ4_0:
    case ops::WeightType::kQ5_0:
      return quantize_symmetric(type == ops::WeightType::kQ5_0, x, out);
    case ops::WeightType::kQ4_1:
    case ops::WeightType::kQ5_1:
      return quantize_from_minimum(type == ops::WeightType::kQ5_1, x, out);
    case ops::WeightType::kMxfp4:
      return quantize_mxfp4(x, out);
    default:
      KV_CHECK(false, "{}", ops::weight_type_name(type));
  }
}

}  // namespace kvasir
