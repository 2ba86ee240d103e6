#include "support/block_weights.h"

#include <cmath>
#include <cstring>

#include "base/check.h"

namespace kvasir::test {
namespace {

using ops::WeightType;

float half_at(const uint8_t* p) {
  return ops::f16_to_f32(static_cast<uint16_t>(p[0] | p[1] << 8));
}
int nibble(const uint8_t* p, int64_t i) {  // of 32 in 16 bytes
  return i < 16 ? p[i] % 16 : p[i - 16] / 16;
}
int bit(const uint8_t* p, int64_t i) {
  return p[i / 8] >> (i % 8) & 1;
}

BlockWeight mxfp4(const uint8_t* b, int64_t i) {
  BlockWeight w;
  w.scale = std::ldexp(1.0f, b[0] - 128);
  w.q = kMxfp4Values[nibble(b + 1, i)];
  return w;
}

BlockWeight small(WeightType type, const uint8_t* b, int64_t i) {
  if (type == WeightType::kMxfp4) return mxfp4(b, i);
  BlockWeight w;
  w.scale = half_at(b);
  switch (type) {
    case WeightType::kQ8_0:
      w.q = static_cast<int8_t>(b[2 + i]);
      break;
    case WeightType::kQ4_0:
      w.q = nibble(b + 2, i) - 8;
      break;
    case WeightType::kQ4_1:
      w.min = half_at(b + 2);
      w.q = nibble(b + 4, i);
      break;
    case WeightType::kZ4:
      w.min = w.scale * half_at(b + 2);
      w.q = nibble(b + 4, i);
      break;
    case WeightType::kQ5_0:
      w.q = nibble(b + 6, i) + 16 * bit(b + 2, i) - 16;
      break;
    case WeightType::kQ5_1:
      w.min = half_at(b + 2);
      w.q = nibble(b + 8, i) + 16 * bit(b + 4, i);
      break;
    default:
      w.q = kIq4Values[nibble(b + 2, i)];  // IQ4_NL
  }
  return w;
}

// The twelve bytes of Q4_K and Q5_K hold eight scales and eight minima: of the first four the low 6 bits of
// bytes 0..3 and 4..7, of the others the halves of bytes 8..11 with two more bits from the top of the first
// eight.
int scale_6(const uint8_t* b, int64_t j, bool min) {
  const int64_t from = min ? 4 : 0;
  if (j < 4) return b[from + j] % 64;
  const int low = min ? b[4 + j] / 16 : b[4 + j] % 16;
  return low + b[from + j - 4] / 64 * 16;
}

BlockWeight q4_or_q5_k(const uint8_t* b, int64_t i, bool fifth) {
  const int64_t group = i / 32, l = i % 32;
  const uint8_t byte = b[(fifth ? 48 : 16) + i / 64 * 32 + l];
  BlockWeight w;
  w.scale = half_at(b);
  w.min = -half_at(b + 2);
  w.scale_factor = scale_6(b + 4, group, false);
  w.min_factor = scale_6(b + 4, group, true);
  w.q = group % 2 == 0 ? byte % 16 : byte / 16;
  if (fifth && (b[16 + l] >> group) % 2 == 1) w.q += 16;
  return w;
}

BlockWeight q6_k(const uint8_t* b, int64_t i) {
  const int64_t part = i % 128 / 32, l = i % 32;
  const uint8_t low = b[i / 128 * 64 + part % 2 * 32 + l];
  const uint8_t high = b[128 + i / 128 * 32 + l];
  BlockWeight w;
  w.scale = half_at(b + 208);
  w.scale_factor = static_cast<int8_t>(b[192 + i / 16]);
  w.q = (part < 2 ? low % 16 : low / 16) + (high >> (2 * part)) % 4 * 16 - 32;
  return w;
}

BlockWeight q3_k(const uint8_t* b, int64_t i) {
  const int64_t s = i / 16;  // twelve bytes: low 4 bits in the first eight, high 2 bits in the last four
  const uint8_t* packed = b + 96;
  const int low = s < 8 ? packed[s] % 16 : packed[s - 8] / 16;
  const int high = packed[8 + s % 4] >> (s / 4 * 2) & 3;
  BlockWeight w;
  w.scale = half_at(b + 108);
  w.scale_factor = low + 16 * high - 32;
  w.q =
      (b[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) - ((b[i % 32] >> (i / 32) & 1) != 0 ? 0 : 4);
  return w;
}

BlockWeight q2_k(const uint8_t* b, int64_t i) {
  BlockWeight w;
  w.scale = half_at(b + 80);
  w.min = -half_at(b + 82);
  w.scale_factor = b[i / 16] % 16;
  w.min_factor = b[i / 16] / 16;
  w.q = b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
  return w;
}

BlockWeight iq4_xs(const uint8_t* b, int64_t i) {
  const int64_t group = i / 32;
  const int high = (b[2] | b[3] << 8) >> (2 * group) & 3;
  BlockWeight w;
  w.scale = half_at(b);
  w.scale_factor = (b[4 + group / 2] >> (group % 2 * 4) & 15) + 16 * high - 32;
  w.q = kIq4Values[nibble(b + 8 + 16 * group, i % 32)];
  return w;
}

// One scale and zero point for all four groups.
BlockWeight z4_128(const uint8_t* b, int64_t i) {
  BlockWeight w;
  w.scale = half_at(b);
  w.min = w.scale * half_at(b + 2);
  w.q = nibble(b + 4 + 16 * (i / 32), i % 32);
  return w;
}

}  // namespace

float BlockWeight::value() const {
  // All but the last step is exact, so that one rounding remains.
  const double exact = static_cast<double>(scale) * scale_factor * q;
  const double minimum = static_cast<double>(min) * min_factor;
  return static_cast<float>(min == 0 ? exact : exact + minimum);
}

BlockWeight block_weight(WeightType type, const uint8_t* row, int64_t i) {
  const int64_t values = ops::block_values(type);
  const uint8_t* b = row + i / values * static_cast<int64_t>(ops::row_bytes(type, values));
  i %= values;
  switch (type) {
    case WeightType::kQ2K:
      return q2_k(b, i);
    case WeightType::kQ3K:
      return q3_k(b, i);
    case WeightType::kQ4K:
      return q4_or_q5_k(b, i, false);
    case WeightType::kQ5K:
      return q4_or_q5_k(b, i, true);
    case WeightType::kQ6K:
      return q6_k(b, i);
    case WeightType::kIq4Xs:
      return iq4_xs(b, i);
    case WeightType::kZ4x128:
      return z4_128(b, i);
    default:
      KV_CHECK(values == 32, "{}", ops::weight_type_name(type));
      return small(type, b, i);
  }
}

bool is_of_folders(WeightType type) {
  return type == WeightType::kZ4 || type == WeightType::kZ4x128;
}

bool has_minimum(WeightType type) {
  return half_places(type).min >= 0;
}
bool has_scale_per_16(WeightType type) {
  return type == WeightType::kQ2K || type == WeightType::kQ3K || type == WeightType::kQ6K;
}

HalfPlaces half_places(WeightType type) {
  switch (type) {
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4K:
    case WeightType::kQ5K:
    case WeightType::kZ4:
    case WeightType::kZ4x128:
      return {0, 2};
    case WeightType::kQ2K:
      return {80, 82};
    case WeightType::kQ3K:
      return {108, -1};
    case WeightType::kQ6K:
      return {208, -1};
    case WeightType::kMxfp4:
      return {-1, -1};
    default:
      return {0, -1};
  }
}

std::vector<uint8_t> random_blocks(Random& random, WeightType type, int64_t blocks) {
  const auto size = static_cast<int64_t>(ops::row_bytes(type, ops::block_values(type)));
  const bool factors = ops::block_values(type) == 256;  // they multiply scale and minimum
  std::vector<uint8_t> out(static_cast<size_t>(blocks * size));
  for (uint8_t& b : out) b = static_cast<uint8_t>(random.bits());
  const HalfPlaces places = half_places(type);
  if (type == WeightType::kMxfp4) {
    for (int64_t i = 0; i < blocks; ++i)
      out[static_cast<size_t>(i * size)] = static_cast<uint8_t>(119 + random.below(8));
    return out;
  }
  for (int64_t i = 0; i < blocks; ++i) {
    const double scale = factors ? (random.unit() - 0.5) * 1e-3 : random.unit() * 0.02;
    const double min = is_of_folders(type) ? -static_cast<double>(random.below(17))
                                           : random.unit() * (factors ? 2e-3 : -0.1);
    const uint16_t d = ops::f32_to_f16(static_cast<float>(scale));
    const uint16_t m = ops::f32_to_f16(static_cast<float>(min));
    std::memcpy(out.data() + i * size + places.scale, &d, 2);
    if (places.min >= 0) std::memcpy(out.data() + i * size + places.min, &m, 2);
  }
  return out;
}

}  // namespace kvasir::test
