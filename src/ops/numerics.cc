// Storage types: names, sizes, exact conversions, and the values of GGUF's rows.
#include "ops/numerics.h"

#include <bit>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "ops/weight_blocks.h"
#include "ops/weight_traits.h"

namespace kvasir::ops {
namespace {

consteval bool in_order() {
  for (size_t i = 0; i < std::size(kWeightTraits); ++i) {
    if (static_cast<size_t>(kWeightTraits[i].type) != i) return false;
  }
  return true;
}
static_assert(in_order(), "kWeightTraits are in the order of WeightType");

const WeightTraits& traits(WeightType type) {
  return kWeightTraits[static_cast<size_t>(type)];
}

uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

}  // namespace

const char* weight_type_name(WeightType type) {
  return traits(type).name;
}

std::optional<WeightType> weight_type_of_name(std::string_view name) {
  for (const WeightTraits& t : kWeightTraits) {
    if (name == t.name) return t.type;
  }
  return std::nullopt;
}

const char* activation_type_name(ActivationType type) {
  switch (type) {
    case ActivationType::kF32:
      return "f32";
    case ActivationType::kBf16:
      return "bf16";
    case ActivationType::kInt8:
      return "int8";
  }
  return "unknown";
}

const char* activation_mode_name(ActivationMode mode) {
  return mode == ActivationMode::kF32 ? "f32" : "auto";
}

const char* kv_type_name(KvType type) {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kBf16:
      return "bf16";
    case KvType::kQ8_0:
      return "q8_0";
  }
  return "unknown";
}

bool is_quantized(WeightType type) {
  return block_values(type) > 1;
}

int64_t kv_row_bytes(KvType type, int64_t head_dim) {
  switch (type) {
    case KvType::kF32:
      return 4 * head_dim;
    case KvType::kBf16:
      return 2 * head_dim;
    case KvType::kQ8_0:
      return head_dim + 2;
  }
  KV_CHECK(false, "KV type {}", static_cast<int>(type));
}

ActivationType activation_for(WeightType type, ActivationMode mode) {
  if (mode == ActivationMode::kF32) return ActivationType::kF32;
  if (is_quantized(type)) return ActivationType::kInt8;
  return type == WeightType::kBf16 ? ActivationType::kBf16 : ActivationType::kF32;
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31u;
  const uint32_t fraction = bits & 0x3FFu;
  if (exponent == 31) {
    const uint32_t quiet = fraction != 0 ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7F800000u | quiet | (fraction << 13));
  }
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  if (fraction == 0) return std::bit_cast<float>(sign);
  // A subnormal half is fraction * 2^-24; shift its leading bit up to the implicit place of a float.
  const uint32_t shift = static_cast<uint32_t>(std::countl_zero(fraction)) - 21;  // 1..10
  return std::bit_cast<float>(sign | ((113 - shift) << 23) | (((fraction << shift) & 0x3FFu) << 13));
}

uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  }
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds to 65520 or more
  uint32_t significand = magnitude;
  uint32_t drop = 13;
  if (magnitude >= 0x38800000u) {
    significand -= 112u << 23;
  } else {
    // The result is subnormal: keep value / 2^-24, rounded. Below 2^-25 nothing is left.
    if (magnitude <= 0x33000000u) return static_cast<uint16_t>(sign);
    const uint32_t exponent = magnitude >> 23;
    significand = (magnitude & 0x7FFFFFu) | 0x800000u;
    drop = 126 - exponent;  // 14..24
  }
  const uint32_t half = 1u << (drop - 1);
  const uint32_t odd = (significand >> drop) & 1u;
  return static_cast<uint16_t>(sign | ((significand + half - 1 + odd) >> drop));
}

float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

int64_t block_values(WeightType type) {
  return traits(type).block_values;
}

size_t row_bytes(WeightType type, int64_t k) {
  const WeightTraits& t = traits(type);
  KV_CHECK(k >= 0 && k % t.block_values == 0, "type={} k={}", t.name, k);
  return static_cast<size_t>(k / t.block_values) * static_cast<size_t>(t.block_bytes);
}

void dequantize_row(WeightType type, const void* row, int64_t k, float* out) {
  const auto* bytes = static_cast<const uint8_t*>(row);
  if (is_quantized(type)) {
    const WeightTraits& t = traits(type);
    KV_CHECK(k % t.block_values == 0, "type={} k={}", t.name, k);
    for (int64_t i = 0; i < k; i += kGroup) {
      const uint8_t* block = bytes + i / t.block_values * t.block_bytes;
      dequantize_group(type, read_group(type, block, i % t.block_values / kGroup), out + i);
    }
    return;
  }
  if (type == WeightType::kF32) {
    std::memcpy(out, bytes, static_cast<size_t>(k) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < k; ++i) {
    const uint16_t v = load_u16(bytes + 2 * i);
    out[i] = type == WeightType::kF16 ? f16_to_f32(v) : bf16_to_f32(v);
  }
}

}  // namespace kvasir::ops
