// Storage types: names, sizes, exact conversions, and the values of GGUF's rows.
#include "ops/numerics.h"

#include <bit>
#include <cstring>

#include "base/check.h"

namespace kvasir::ops {
namespace {

// Bytes of a GGUF block of 32 elements (quantised types) or of one element.
size_t unit_bytes(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return 4;
    case WeightType::kF16:
    case WeightType::kBf16:
      return 2;
    case WeightType::kQ8_0:
      return 2 + 32;
    case WeightType::kQ4_0:
      return 2 + 16;
    case WeightType::kQ4_1:
      return 4 + 16;
  }
  KV_CHECK(false, "weight type {}", static_cast<int>(type));
}

uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

void dequantize_block(WeightType type, const uint8_t* block, float* out) {
  const float d = f16_to_f32(load_u16(block));
  if (type == WeightType::kQ8_0) {
    for (int i = 0; i < kGroup; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
    return;
  }
  if (type == WeightType::kQ4_0) {
    for (int i = 0; i < kGroup / 2; ++i) {
      out[i] = d * static_cast<float>((block[2 + i] & 15) - 8);
      out[i + 16] = d * static_cast<float>((block[2 + i] >> 4) - 8);
    }
    return;
  }
  const float m = f16_to_f32(load_u16(block + 2));
  for (int i = 0; i < kGroup / 2; ++i) {
    out[i] = __builtin_fmaf(d, static_cast<float>(block[4 + i] & 15), m);
    out[i + 16] = __builtin_fmaf(d, static_cast<float>(block[4 + i] >> 4), m);
  }
}

}  // namespace

const char* weight_type_name(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "F32";
    case WeightType::kF16:
      return "F16";
    case WeightType::kBf16:
      return "BF16";
    case WeightType::kQ8_0:
      return "Q8_0";
    case WeightType::kQ4_0:
      return "Q4_0";
    case WeightType::kQ4_1:
      return "Q4_1";
  }
  return "unknown";
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
  return type == WeightType::kQ8_0 || type == WeightType::kQ4_0 || type == WeightType::kQ4_1;
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

size_t row_bytes(WeightType type, int64_t k) {
  KV_CHECK(k >= 0 && (!is_quantized(type) || k % kGroup == 0), "type={} k={}", weight_type_name(type), k);
  return static_cast<size_t>(is_quantized(type) ? k / kGroup : k) * unit_bytes(type);
}

void dequantize_row(WeightType type, const void* row, int64_t k, float* out) {
  const auto* bytes = static_cast<const uint8_t*>(row);
  if (is_quantized(type)) {
    KV_CHECK(k % kGroup == 0, "type={} k={}", weight_type_name(type), k);
    for (int64_t g = 0; g < k / kGroup; ++g) {
      dequantize_block(type, bytes + static_cast<size_t>(g) * unit_bytes(type), out + g * kGroup);
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
