// The layouts of GGUF's blocks.
#include "ops/weight_blocks.h"

#include <cstring>

#include "base/check.h"
#include "ops/weight_traits.h"

namespace kvasir::ops {
namespace {

uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// Value k lies in the low half of byte k, value k + 16 in the high half.
void read_halves(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = bytes[i] & 15;
    codes[i + 16] = bytes[i] >> 4;
  }
}
// Bits [shift, shift + bits) of 32 bytes, put at bit `to` of the codes.
void add_bits(const uint8_t* bytes, int shift, int bits, int to, uint8_t* codes) {
  const int mask = (1 << bits) - 1;
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | ((bytes[i] >> shift) & mask) << to);
}
// A fifth bit: bit k of a word of 32 belongs to value k.
void add_fifth_bits(const uint8_t* word, uint8_t* codes) {
  for (int i = 0; i < 32; ++i)
    codes[i] = static_cast<uint8_t>(codes[i] | ((word[i / 8] >> (i % 8)) & 1) << 4);
}

// Scale and minimum of group j, 6 bits each: those of the last four have their upper two bits elsewhere.
void read_scale_and_min(const uint8_t* b, int64_t j, uint8_t* out) {
  if (j < 4) {
    out[0] = b[j] & 63;
    out[1] = b[j + 4] & 63;
  } else {
    out[0] = static_cast<uint8_t>((b[j + 4] & 15) | (b[j - 4] >> 6) << 4);
    out[1] = static_cast<uint8_t>((b[j + 4] >> 4) | (b[j] >> 6) << 4);
  }
}
// The i-th of Q3_K's sixteen scales of 6 bits, less 32.
uint8_t q3_scale(const uint8_t* b, int64_t i) {
  const int low = i < 8 ? b[i] & 15 : b[i - 8] >> 4;
  const int high = (b[8 + i % 4] >> (2 * (i / 4))) & 3;
  return static_cast<uint8_t>((low | high << 4) - 32);
}

// The scale is 2^(exponent - 128): ggml's, of values that are twice those of the format. The exponent 255 is
// 2^127 as in ggml, where the format (OCP) has NaN.
void read_mxfp4(const uint8_t* b, WeightGroup& out) {
  out.d = static_cast<uint16_t>(b[0] < 2 ? 0x20 << b[0] : (b[0] - 1) << 7);
  read_halves(b + 1, out.codes);
}

void read_small_block(WeightType type, const uint8_t* block, WeightGroup& out) {
  out.d = load_u16(block);
  block += 2;
  if (type == WeightType::kQ8_0) {
    for (int i = 0; i < 32; ++i) out.codes[i] = static_cast<uint8_t>(block[i] + 128);
    return;
  }
  if (kWeightTraits[static_cast<size_t>(type)].has_min) {
    out.min = load_u16(block);
    block += 2;
  }
  const bool fifth = type == WeightType::kQ5_0 || type == WeightType::kQ5_1;
  read_halves(block + (fifth ? 4 : 0), out.codes);
  if (fifth) add_fifth_bits(block, out.codes);
}

void read_z4_128(const uint8_t* b, int64_t j, WeightGroup& out) {
  out.d = load_u16(b);
  out.min = load_u16(b + 2);
  read_halves(b + 4 + 16 * j, out.codes);
}

void read_q2_k(const uint8_t* b, int64_t j, WeightGroup& out) {
  std::memcpy(out.scale_bytes, b + 2 * j, 2);
  add_bits(b + 16 + j / 4 * 32, static_cast<int>(2 * (j % 4)), 2, 0, out.codes);
  out.d = load_u16(b + 80);
  out.min = load_u16(b + 82);
}
void read_q3_k(const uint8_t* b, int64_t j, WeightGroup& out) {
  add_bits(b, static_cast<int>(j), 1, 2, out.codes);
  add_bits(b + 32 + j / 4 * 32, static_cast<int>(2 * (j % 4)), 2, 0, out.codes);
  for (int64_t s = 0; s < 2; ++s) out.scale_bytes[s] = q3_scale(b + 96, 2 * j + s);
  out.d = load_u16(b + 108);
}
void read_q4_or_q5_k(bool fifth, const uint8_t* b, int64_t j, WeightGroup& out) {
  out.d = load_u16(b);
  out.min = load_u16(b + 2);
  read_scale_and_min(b + 4, j, out.scale_bytes);
  b += 16;
  if (fifth) {
    add_bits(b, static_cast<int>(j), 1, 4, out.codes);
    b += 32;
  }
  add_bits(b + j / 2 * 32, static_cast<int>(4 * (j % 2)), 4, 0, out.codes);
}
void read_q6_k(const uint8_t* b, int64_t j, WeightGroup& out) {
  const int64_t half = j / 4, part = j % 4;
  add_bits(b + half * 64 + part % 2 * 32, static_cast<int>(part / 2 * 4), 4, 0, out.codes);
  add_bits(b + 128 + half * 32, static_cast<int>(2 * part), 2, 4, out.codes);
  std::memcpy(out.scale_bytes, b + 192 + 2 * j, 2);
  out.d = load_u16(b + 208);
}
void read_iq4_xs(const uint8_t* b, int64_t j, WeightGroup& out) {
  const int low = (b[4 + j / 2] >> (4 * (j % 2))) & 15;
  const int high = (load_u16(b + 2) >> (2 * j)) & 3;
  out.d = load_u16(b);
  out.scale_bytes[0] = static_cast<uint8_t>((low | high << 4) - 32);
  read_halves(b + 8 + 16 * j, out.codes);
}

}  // namespace

WeightGroup read_group(WeightType type, const uint8_t* block, int64_t index) {
  WeightGroup out;
  switch (type) {
    case WeightType::kQ2K:
      read_q2_k(block, index, out);
      return out;
    case WeightType::kQ3K:
      read_q3_k(block, index, out);
      return out;
    case WeightType::kQ4K:
    case WeightType::kQ5K:
      read_q4_or_q5_k(type == WeightType::kQ5K, block, index, out);
      return out;
    case WeightType::kQ6K:
      read_q6_k(block, index, out);
      return out;
    case WeightType::kIq4Xs:
      read_iq4_xs(block, index, out);
      return out;
    case WeightType::kMxfp4:
      read_mxfp4(block, out);
      return out;
    case WeightType::kZ4x128:
      read_z4_128(block, index, out);
      return out;
    default:
      KV_CHECK(is_quantized(type) && index == 0, "type={} index={}", weight_type_name(type), index);
      read_small_block(type, block, out);
      return out;
  }
}

void dequantize_group(WeightType type, const WeightGroup& group, float* out) {
  const WeightTraits& t = kWeightTraits[static_cast<size_t>(type)];
  const float d = t.bf16_scale ? bf16_to_f32(group.d) : f16_to_f32(group.d);
  const bool subtracted = t.scale_bytes > 0;
  const float stored = f16_to_f32(group.min);
  const float min = t.scaled_min ? d * stored : subtracted ? -stored : stored;
  for (int i = 0; i < 32; ++i) {
    const uint8_t byte = group.scale_bytes[t.scales == 2 ? i / 16 : 0];
    float scale = d, minimum = min;
    if (t.scales == 2 && t.has_min) {  // both in one byte
      scale = d * static_cast<float>(byte & 15);
      minimum = min * static_cast<float>(byte >> 4);
    } else if (t.scale_bytes > 0) {
      scale = d * static_cast<float>(static_cast<int8_t>(byte));
      minimum = min * static_cast<float>(group.scale_bytes[1]);
    }
    const int code = t.lookup != nullptr ? t.lookup[group.codes[i]] : group.codes[i];
    const auto q = static_cast<float>(code - t.offset);
    out[i] = t.has_min ? __builtin_fmaf(scale, q, minimum) : scale * q;
  }
}

}  // namespace kvasir::ops
