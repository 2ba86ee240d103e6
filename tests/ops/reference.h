// What the kernels must compute, once more: scalar, naive, and in the order that the headers promise.
// Nothing here calls a kernel; tests compare bit for bit.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/packed_matrix.h"
#include "ops/kv_layout.h"

namespace kvasir::ops {

// Memory on a 64-byte boundary.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size) : bytes_(size + 64), size_(size) {}
  uint8_t* data() { return bytes_.data() + (64 - reinterpret_cast<uintptr_t>(bytes_.data()) % 64) % 64; }
  size_t size() const { return size_; }

 private:
  std::vector<uint8_t> bytes_;
  size_t size_;
};

// Every class that this CPU has, and AVX-512 without the bf16 instruction, each call under flush-to-zero.
void for_each_isa(const std::function<void(const Kernels&)>& test);

// Uniform in [-scale, scale].
std::vector<float> random_floats(Random& random, int64_t n, float scale = 1.0f);
// n rows of k values in GGUF's layout, random in value, scale and minimum.
std::vector<uint8_t> random_weights(Random& random, WeightType type, int64_t n, int64_t k);

// True if the two are the same bits; prints the first difference. nan_is_nan: whatever its bits.
bool same_bits(const std::vector<float>& want, const std::vector<float>& got, const std::string& what,
               bool nan_is_nan = false);

// One quantised row: q, d as f16 bits.
struct ReferenceRow {
  std::vector<int> q;
  std::vector<uint16_t> d;
};
ReferenceRow reference_quantize(const float* x, int64_t k);

// One output of gemm_int8: activations row x against GGUF row w.
float reference_dot_int8(WeightType type, const uint8_t* w, const float* x, int64_t k);
// One output of gemm_bf16: the f32 row x against GGUF row w.
float reference_dot_bf16(const uint8_t* w, const float* x, int64_t k);
// One output of gemm_f32.
float reference_dot_f32(WeightType type, const uint8_t* w, const float* x, int64_t k);

float reference_exp(float x);
// The sum of 16 values by halving.
float reference_tree(std::vector<float> lanes);

struct ReferencePartial {
  float m = 0;
  float l = 0;
  std::vector<float> o;
};
// Attention of one query over positions whose K and V rows are given (already rounded to the cache type).
ReferencePartial reference_leaf(const std::vector<float>& q, const std::vector<std::vector<float>>& k,
                                const std::vector<std::vector<float>>& v, int64_t valid);
ReferencePartial reference_merge(const ReferencePartial& left, const ReferencePartial& right);

}  // namespace kvasir::ops
