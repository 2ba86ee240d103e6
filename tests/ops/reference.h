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
#include "support/block_weights.h"

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

// Every class that this CPU has, and AVX-512 without what only some CPUs add, each call under flush-to-zero.
void for_each_isa(const std::function<void(const Kernels&)>& test);

// Uniform in [-scale, scale].
std::vector<float> random_floats(Random& random, int64_t n, float scale = 1.0f);
// The quantised types of blocks of so many values, at most.
std::vector<WeightType> quantized_types(int64_t most_block_values);
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
ReferenceRow reference_quantize(const float* x, int64_t k, int64_t group = 32);

// A row of quantised weights, decoded.
std::vector<test::BlockWeight> decode_weights(WeightType type, const uint8_t* w, int64_t k);
// One output of gemm_int8: a quantised row of activations against such weights.
float reference_dot_int8(WeightType type, const std::vector<test::BlockWeight>& w, const ReferenceRow& x);
// One output of gemm_bf16: the f32 row x against GGUF row w.
float reference_dot_bf16(const uint8_t* w, const float* x, int64_t k);
// One output of gemm_f32, given the weights' values; and those of a row of GGUF data.
float reference_dot_f32(const std::vector<float>& w, const float* x);
std::vector<float> weight_values(WeightType type, const uint8_t* w, int64_t k);

float reference_exp(float x);
// The sum of 16 values by halving.
float reference_tree(std::vector<float> lanes);

struct ReferencePartial {
  float m = 0;
  float l = 0;
  std::vector<float> o;
};
// Rows of K or V as the cache holds them: values, and the scale of each row (1 where the type has none).
struct ReferenceRows {
  std::vector<std::vector<float>> values;
  std::vector<float> scales;

  void append(KvType type, const float* row, int64_t head_dim);
};
// Attention of one query over the first `valid` positions.
ReferencePartial reference_leaf(const std::vector<float>& q, const ReferenceRows& k, const ReferenceRows& v,
                                int64_t valid);
ReferencePartial reference_merge(const ReferencePartial& left, const ReferencePartial& right);

}  // namespace kvasir::ops
