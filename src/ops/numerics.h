// The numbers that decide the bits of an output: constants of the kernels, storage types, exact conversions.
//
// Everything here is a pure function and thread-safe. The header defines no inline function, so that files
// compiled for a wider instruction set may include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/leaf_tokens.h"

namespace kvasir::ops {

// The name of the arithmetic that all instruction sets share: every product is added by a fused multiply-add,
// so that the portable, AVX2 and AVX-512 kernels agree bit for bit. Part of the numerics id.
constexpr const char* kArithmetic = "fma";

// Elements of K that share one quantisation scale, in weights and in activations.
constexpr int64_t kGroup = 32;
// Positions in one attention leaf, as the kernels count them.
constexpr int64_t kLeafTokens = kvasir::kLeafTokens;
// Partial sums of every reduction: element i belongs to partial i mod 16.
constexpr int64_t kLanes = 16;
// Values of a row of K at most where V is a part of it.
constexpr int64_t kMostLatentRow = 1024;
// Output columns in one panel of a packed matrix.
constexpr int64_t kPanel = 32;

// How a weight tensor is stored, quantised ones in GGUF's blocks: weight_traits.h says what each is. In
// blocks of 32, w = d (q - offset) or d q + m with d and m in f16; in blocks of 256 (K and IQ4_XS), d and m
// are multiplied by small integers of each group of 32 (kQ2K, kQ3K, kQ6K: d by one for each 16). kIq4Nl,
// kIq4Xs, kMxfp4: q is a value of a table. kMxfp4: d is a power of two. kZ4, kZ4x128: w = d q + d m with -m
// the zero point of the group; folders of AWQ and GPTQ become these, GGUF files have none.
enum class WeightType : uint8_t {
  kF32,
  kF16,
  kBf16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kIq4Nl,
  kIq4Xs,
  kMxfp4,
  kZ4,
  kZ4x128,
};
// What a matrix product consumes: f32 rows, rows rounded to bf16, or int8 rows with one f16 scale per group
// of 32.
enum class ActivationType : uint8_t { kF32, kBf16, kInt8 };
// What a user may ask for: the rows that suit the weights (see activation_for), or f32 throughout.
enum class ActivationMode : uint8_t { kAuto, kF32 };
// How K and V are stored. kQ8_0: one f16 scale for each row of head_dim int8 (a token, one KV head, one
// plane).
enum class KvType : uint8_t { kF32, kBf16, kQ8_0 };
constexpr KvType kKvTypes[] = {KvType::kF32, KvType::kBf16, KvType::kQ8_0};

// "F32", "Q4_1", "Q4_K" and so on, as GGUF tools write them.
const char* weight_type_name(WeightType type);
// The type of such a name, or nothing.
std::optional<WeightType> weight_type_of_name(std::string_view name);
// "f32", "bf16", "int8"
const char* activation_type_name(ActivationType type);
// "auto", "f32"
const char* activation_mode_name(ActivationMode mode);
// "f32", "bf16", "q8_0"
const char* kv_type_name(KvType type);

// True for the types with scales per group, which the int8 products accept.
bool is_quantized(WeightType type);
// Bytes of one row of a K or V plane: one token, one KV head, its scale included. Every size of the cache
// comes from here.
int64_t kv_row_bytes(KvType type, int64_t head_dim);
// The rows that a product with such weights takes: under kAuto int8 for quantised weights, bf16 for BF16 ones
// and f32 for the others; under kF32 f32.
ActivationType activation_for(WeightType type, ActivationMode mode);

// Exact; subnormals and NaN (quieted) included. Independent of the floating-point mode.
float f16_to_f32(uint16_t bits);
// Rounds to nearest even; overflow becomes infinity, NaN stays NaN (quiet). Independent of the mode.
uint16_t f32_to_f16(float value);
float bf16_to_f32(uint16_t bits);
// Rounds to nearest even; NaN stays NaN (quiet). Independent of the mode.
uint16_t f32_to_bf16(float value);

// Values in one of GGUF's blocks of such a type: 1, 32, 128 or 256.
int64_t block_values(WeightType type);
// Bytes of one row of k elements in GGUF's layout. REQUIRES: k is whole blocks.
size_t row_bytes(WeightType type, int64_t k);
// Values of one row in GGUF's layout, exactly those that gemm_f32 multiplies with: with scale S and minimum B
// of its group, fma(S, q, B). Where blocks have several scales, S and B are products, which f32 holds
// exactly. out: [k]. REQUIRES: k is whole blocks.
void dequantize_row(WeightType type, const void* row, int64_t k, float* out);

}  // namespace kvasir::ops
