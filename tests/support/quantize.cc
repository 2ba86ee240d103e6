// Quantises rows in a simple way, independently of the code that reads them.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "support/block_weights.h"
#include "support/gguf_builder.h"

namespace kvasir::test {
namespace {

using ops::WeightType;
using Row = std::span<const float>;
using Bytes = std::vector<std::byte>;
using Codes = std::vector<uint8_t>;

constexpr size_t kBlock = 32;

uint8_t clamp_round(float value, float most) {
  return static_cast<uint8_t>(std::clamp(std::nearbyint(value), 0.0F, most));
}

// Appends a number as f16 and returns what was stored.
float append_half(Bytes& out, float value) {
  const uint16_t bits = ops::f32_to_f16(value);
  append(out, bits);
  return ops::f16_to_f32(bits);
}

void append_bytes(Bytes& out, const std::vector<uint8_t>& bytes) {
  for (uint8_t b : bytes) append(out, b);
}

// Element i in the low half of byte i, element i + 16 in the high half.
void append_nibbles(Bytes& out, const Codes& q) {
  for (size_t i = 0; i < 16; ++i) append(out, static_cast<uint8_t>((q[i] & 15) | (q[i + 16] & 15) << 4));
}
void append_fifth_bits(Bytes& out, const Codes& q) {
  uint32_t bits = 0;
  for (size_t i = 0; i < kBlock; ++i) bits |= static_cast<uint32_t>(q[i] >> 4) << i;
  append(out, bits);
}

float largest(Row x) {
  float most = 0;
  for (float v : x) most = std::max(most, std::fabs(v));
  return most;
}

// The index of the nearest value of the table.
uint8_t nearest(float value) {
  size_t best = 0;
  for (size_t i = 1; i < 16; ++i) {
    if (std::fabs(value - static_cast<float>(kIq4Values[i])) <
        std::fabs(value - static_cast<float>(kIq4Values[best])))
      best = i;
  }
  return static_cast<uint8_t>(best);
}

void append_q8_0(Bytes& out, Row x) {
  const float d = append_half(out, largest(x) / 127.0F);
  for (float v : x) {
    const float q = d == 0 ? 0 : std::clamp(std::nearbyint(v / d), -127.0F, 127.0F);
    append(out, static_cast<int8_t>(q));
  }
}

// The value of the largest magnitude becomes q = 0, that is -8 d or -16 d, which makes use of the longer
// negative side.
void append_symmetric(Bytes& out, Row x, float half, bool fifth) {
  float extreme = 0;
  for (float v : x) extreme = std::fabs(v) > std::fabs(extreme) ? v : extreme;
  const float d = append_half(out, extreme / -half);
  Codes q;
  for (float v : x) {
    q.push_back(d == 0 ? static_cast<uint8_t>(half) : clamp_round(v / d + half, 2 * half - 1));
  }
  if (fifth) append_fifth_bits(out, q);
  append_nibbles(out, q);
}

void append_from_minimum(Bytes& out, Row x, float most, bool fifth) {
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const float d = append_half(out, (*high - *low) / most);
  const float m = append_half(out, *low);
  Codes q;
  for (float v : x) q.push_back(d == 0 ? uint8_t{0} : clamp_round((v - m) / d, most));
  if (fifth) append_fifth_bits(out, q);
  append_nibbles(out, q);
}

void append_iq4_nl(Bytes& out, Row x) {
  const float d = append_half(out, largest(x) / 120.0F);
  Codes q;
  for (float v : x) q.push_back(d == 0 ? uint8_t{8} : nearest(v / d));
  append_nibbles(out, q);
}

// A block of 256 whose parts, of 16 or 32 values, have scales of their own.
struct LargeBlock {
  float d = 0;
  float min = 0;
  std::vector<int> scales, mins;  // of each part
  Codes codes = Codes(256);
};

// w = d sc q - min m, with q up to `most` and sc, m up to `most_factor`.
LargeBlock with_minima(Row x, size_t part, float most, float most_factor) {
  std::vector<float> steps, lows;
  for (size_t i = 0; i < 256; i += part) {
    const auto [low, high] =
        std::minmax_element(x.begin() + static_cast<long>(i), x.begin() + static_cast<long>(i + part));
    lows.push_back(std::max(0.0F, -*low));
    steps.push_back((std::max(0.0F, *high) + lows.back()) / most);
  }
  const auto stored = [](float v) { return ops::f16_to_f32(ops::f32_to_f16(v)); };
  LargeBlock b;
  b.d = stored(*std::max_element(steps.begin(), steps.end()) / most_factor);
  b.min = stored(*std::max_element(lows.begin(), lows.end()) / most_factor);
  for (size_t p = 0; p < steps.size(); ++p) {
    b.scales.push_back(b.d == 0 ? 0 : clamp_round(steps[p] / b.d, most_factor));
    b.mins.push_back(b.min == 0 ? 0 : clamp_round(lows[p] / b.min, most_factor));
    const float scale = b.d * static_cast<float>(b.scales[p]);
    for (size_t i = p * part; i < (p + 1) * part; ++i) {
      const float above = x[i] + b.min * static_cast<float>(b.mins[p]);
      b.codes[i] = scale == 0 ? uint8_t{0} : clamp_round(above / scale, most);
    }
  }
  return b;
}

// w = d sc q: code(v) of a value in units of the scale, which reaches `reach`; sc up to most_factor.
template <typename Code>
LargeBlock without_minima(Row x, size_t part, float reach, float most_factor, Code code) {
  LargeBlock b;
  b.d = ops::f16_to_f32(ops::f32_to_f16(largest(x) / reach / most_factor));
  for (size_t p = 0; p < 256 / part; ++p) {
    b.scales.push_back(b.d == 0 ? 0
                                : clamp_round(largest(x.subspan(p * part, part)) / reach / b.d, most_factor));
    const float scale = b.d * static_cast<float>(b.scales[p]);
    for (size_t i = p * part; i < (p + 1) * part; ++i) b.codes[i] = code(scale == 0 ? 0.0F : x[i] / scale);
  }
  return b;
}

// `bits` bits of the codes from bit `from` on, at stride 32: byte l of the c-th 32 bytes has those of values
// c * per + l, c * per + l + 32 and so on.
std::vector<uint8_t> strided_bits(const Codes& q, int from, int bits) {
  const auto fields = static_cast<size_t>(8 / bits);
  std::vector<uint8_t> out(256 / fields);
  for (size_t i = 0; i < 256; ++i) {
    const int field = q[i] >> from & ((1 << bits) - 1);
    const auto shift = static_cast<int>(i / 32 % fields) * bits;
    uint8_t& byte = out[i / 32 / fields * 32 + i % 32];
    byte = static_cast<uint8_t>(byte | field << shift);
  }
  return out;
}

void append_q4_or_q5_k(Bytes& out, Row x, bool fifth) {
  const LargeBlock b = with_minima(x, 32, fifth ? 31 : 15, 63);
  append_half(out, b.d);
  append_half(out, b.min);
  std::vector<uint8_t> packed(12);
  for (size_t j = 0; j < 8; ++j) {
    const int sc = b.scales[j], m = b.mins[j];
    if (j < 4) {
      packed[j] = static_cast<uint8_t>(packed[j] | sc);
      packed[j + 4] = static_cast<uint8_t>(packed[j + 4] | m);
    } else {
      packed[j + 4] = static_cast<uint8_t>((sc & 15) | (m & 15) << 4);
      packed[j - 4] = static_cast<uint8_t>(packed[j - 4] | sc >> 4 << 6);
      packed[j] = static_cast<uint8_t>(packed[j] | m >> 4 << 6);
    }
  }
  append_bytes(out, packed);
  if (fifth) append_bytes(out, strided_bits(b.codes, 4, 1));
  append_bytes(out, strided_bits(b.codes, 0, 4));
}

void append_q2_k(Bytes& out, Row x) {
  const LargeBlock b = with_minima(x, 16, 3, 15);
  for (size_t p = 0; p < 16; ++p) append(out, static_cast<uint8_t>(b.scales[p] | b.mins[p] << 4));
  append_bytes(out, strided_bits(b.codes, 0, 2));
  append_half(out, b.d);
  append_half(out, b.min);
}

void append_q3_k(Bytes& out, Row x) {
  const LargeBlock b = without_minima(x, 16, 3.5F, 31, [](float v) { return clamp_round(v + 4, 7); });
  append_bytes(out, strided_bits(b.codes, 2, 1));
  append_bytes(out, strided_bits(b.codes, 0, 2));
  std::vector<uint8_t> packed(12);
  for (size_t p = 0; p < 16; ++p) {
    const int sc = b.scales[p] + 32;
    packed[p % 8] = static_cast<uint8_t>(packed[p % 8] | (sc & 15) << (p / 8 * 4));
    packed[8 + p % 4] = static_cast<uint8_t>(packed[8 + p % 4] | sc >> 4 << (p / 4 * 2));
  }
  append_bytes(out, packed);
  append_half(out, b.d);
}

void append_q6_k(Bytes& out, Row x) {
  const LargeBlock b = without_minima(x, 16, 31.5F, 127, [](float v) { return clamp_round(v + 32, 63); });
  // Of each 128 values, 64 bytes hold the low halves of values 0..63 below those of 64..127.
  for (size_t half = 0; half < 256; half += 128) {
    for (size_t i = half; i < half + 64; ++i) {
      append(out, static_cast<uint8_t>((b.codes[i] & 15) | (b.codes[i + 64] & 15) << 4));
    }
  }
  append_bytes(out, strided_bits(b.codes, 4, 2));
  for (int sc : b.scales) append(out, static_cast<int8_t>(sc));
  append_half(out, b.d);
}

void append_iq4_xs(Bytes& out, Row x) {
  const LargeBlock b = without_minima(x, 32, 120.0F, 31, nearest);
  append_half(out, b.d);
  uint16_t high = 0;
  std::vector<uint8_t> low(4);
  for (size_t j = 0; j < 8; ++j) {
    const int sc = b.scales[j] + 32;
    high = static_cast<uint16_t>(high | sc >> 4 << (2 * j));
    low[j / 2] = static_cast<uint8_t>(low[j / 2] | (sc & 15) << (j % 2 * 4));
  }
  append(out, high);
  append_bytes(out, low);
  for (size_t j = 0; j < 256; j += 32) {
    append_nibbles(
        out, Codes(b.codes.begin() + static_cast<long>(j), b.codes.begin() + static_cast<long>(j + 32)));
  }
}

// The largest value is 4 to 8 of e2m1's, whose largest is 6.
void append_mxfp4(Bytes& out, Row x) {
  const float most = largest(x);
  const int exponent = most == 0 ? 0 : std::ilogb(most) - 2;
  append(out, static_cast<uint8_t>(exponent + 127));
  Codes codes;
  for (float v : x) {
    size_t best = 0;
    const float scaled = std::ldexp(v, 1 - exponent);
    for (size_t i = 1; i < 16; ++i) {
      if (std::fabs(scaled - static_cast<float>(kMxfp4Values[i])) <
          std::fabs(scaled - static_cast<float>(kMxfp4Values[best])))
        best = i;
    }
    codes.push_back(static_cast<uint8_t>(best));
  }
  append_nibbles(out, codes);
}

void append_block(Bytes& out, WeightType type, Row x) {
  switch (type) {
    case WeightType::kQ8_0:
      return append_q8_0(out, x);
    case WeightType::kQ4_0:
    case WeightType::kQ5_0:
      return append_symmetric(out, x, type == WeightType::kQ5_0 ? 16 : 8, type == WeightType::kQ5_0);
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
      return append_from_minimum(out, x, type == WeightType::kQ5_1 ? 31 : 15, type == WeightType::kQ5_1);
    case WeightType::kQ2K:
      return append_q2_k(out, x);
    case WeightType::kQ3K:
      return append_q3_k(out, x);
    case WeightType::kQ4K:
    case WeightType::kQ5K:
      return append_q4_or_q5_k(out, x, type == WeightType::kQ5K);
    case WeightType::kQ6K:
      return append_q6_k(out, x);
    case WeightType::kIq4Nl:
      return append_iq4_nl(out, x);
    case WeightType::kIq4Xs:
      return append_iq4_xs(out, x);
    case WeightType::kMxfp4:
      return append_mxfp4(out, x);
    default:
      KV_CHECK(false, "{}", ops::weight_type_name(type));
  }
}

}  // namespace

std::vector<std::byte> quantize(WeightType type, std::span<const float> values, int64_t columns) {
  KV_CHECK(columns > 0 && values.size() % static_cast<size_t>(columns) == 0, "{} values in rows of {}",
           values.size(), columns);
  std::vector<std::byte> out;
  const auto block = static_cast<size_t>(ops::block_values(type));
  KV_CHECK(columns % static_cast<int64_t>(block) == 0, "rows of {} in blocks of {}", columns, block);
  for (size_t i = 0; i < values.size(); i += block) {
    if (type == WeightType::kF32) {
      append(out, values[i]);
    } else if (type == WeightType::kF16) {
      append(out, ops::f32_to_f16(values[i]));
    } else if (type == WeightType::kBf16) {
      append(out, ops::f32_to_bf16(values[i]));
    } else {
      append_block(out, type, values.subspan(i, block));
    }
  }
  return out;
}

WeightType type_that_fits(WeightType type, int64_t columns) {
  if (columns % ops::block_values(type) == 0) return type;
  switch (type) {
    case WeightType::kQ4K:
      return WeightType::kQ5_0;
    case WeightType::kQ5K:
      return WeightType::kQ5_1;
    case WeightType::kQ6K:
      return WeightType::kQ8_0;
    default:
      return WeightType::kIq4Nl;
  }
}

}  // namespace kvasir::test
