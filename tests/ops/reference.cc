// Naive versions of the kernels' formulas.
#include "reference.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "ops/numerics.h"
#include "ops/weight_traits.h"
#include "support/block_weights.h"

namespace kvasir::ops {
namespace {

uint16_t u16(const uint8_t* p) {
  return static_cast<uint16_t>(p[0] | (p[1] << 8));
}

}  // namespace

void for_each_isa(const std::function<void(const Kernels&)>& test) {
  set_flush_to_zero();
  for (IsaClass isa : {IsaClass::kPortable, IsaClass::kAvx2, IsaClass::kAvx512}) {
    if (!is_supported(isa)) continue;
    SCOPED_TRACE(isa_name(isa));
    test(kernels_for(isa));
  }
  if (has_bf16_dot() || has_amx()) {
    SCOPED_TRACE("avx512 without bf16 dot products and AMX");
    test(basic_avx512_kernels());
  }
}

std::vector<float> random_floats(Random& random, int64_t n, float scale) {
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = static_cast<float>(2 * random.unit() - 1) * scale;
  return v;
}

std::vector<WeightType> quantized_types(int64_t most_block_values) {
  std::vector<WeightType> out;
  for (const WeightTraits& t : kWeightTraits) {
    if (t.block_values > 1 && t.block_values <= most_block_values) out.push_back(t.type);
  }
  return out;
}

std::vector<uint8_t> random_weights(Random& random, WeightType type, int64_t n, int64_t k) {
  if (!is_quantized(type)) {
    std::vector<uint8_t> bytes(static_cast<size_t>(n) * row_bytes(type, k));
    const size_t size = type == WeightType::kF32 ? 4 : 2;
    for (size_t i = 0; i < bytes.size(); i += size) {
      const auto x = static_cast<float>(2 * random.unit() - 1);
      const uint16_t half = type == WeightType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
      if (size == 4) {
        std::memcpy(bytes.data() + i, &x, 4);
      } else {
        std::memcpy(bytes.data() + i, &half, 2);
      }
    }
    return bytes;
  }
  return test::random_blocks(random, type, n * k / block_values(type));
}

bool same_bits(const std::vector<float>& want, const std::vector<float>& got, const std::string& what,
               bool nan_is_nan) {
  if (want.size() != got.size()) {
    ADD_FAILURE() << what << ": sizes " << want.size() << " and " << got.size();
    return false;
  }
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::bit_cast<uint32_t>(want[i]) == std::bit_cast<uint32_t>(got[i])) continue;
    if (nan_is_nan && std::isnan(want[i]) && std::isnan(got[i])) continue;
    ADD_FAILURE() << what << ": element " << i << " should be " << want[i] << " and is " << got[i];
    return false;
  }
  return true;
}

ReferenceRow reference_quantize(const float* x, int64_t k, int64_t group) {
  ReferenceRow row;
  for (int64_t g = 0; g < k; g += group) {
    float amax = 0;
    for (int64_t i = g; i < g + group; ++i) {
      if (std::fabs(x[i]) > amax) amax = std::fabs(x[i]);
    }
    float exact = amax / 127.0f;
    if (!(exact < 65504.0f)) exact = 65504.0f;
    const uint16_t bits = f32_to_f16(exact);
    row.d.push_back(bits);
    const float d = f16_to_f32(bits);
    for (int64_t i = g; i < g + group; ++i) {
      if (d == 0) {
        row.q.push_back(0);
        continue;
      }
      const float scaled = x[i] * (1.0f / d);
      if (std::isnan(scaled) || scaled < -127.0f) {
        row.q.push_back(-127);
      } else if (scaled > 127.0f) {
        row.q.push_back(127);
      } else {
        row.q.push_back(static_cast<int>(std::nearbyint(scaled)));
      }
    }
  }
  return row;
}

std::vector<test::BlockWeight> decode_weights(WeightType type, const uint8_t* w, int64_t k) {
  std::vector<test::BlockWeight> out;
  for (int64_t i = 0; i < k; ++i) out.push_back(test::block_weight(type, w, i));
  return out;
}

float reference_dot_int8(WeightType type, const std::vector<test::BlockWeight>& w, const ReferenceRow& row) {
  const bool minimum = test::has_minimum(type);
  float acc = 0;
  for (size_t g = 0; g < row.d.size(); ++g) {
    const float da = f16_to_f32(row.d[g]);
    const test::BlockWeight& head = w[32 * g];
    if (!test::has_scale_per_16(type)) {
      int isum = 0, sum = 0;
      for (size_t i = 32 * g; i < 32 * g + 32; ++i) {
        isum += row.q[i] * w[i].q;
        sum += row.q[i];
      }
      const float scale = head.scale * static_cast<float>(head.scale_factor);
      acc = std::fma(scale * da, static_cast<float>(isum), acc);
      const float min = head.min * static_cast<float>(head.min_factor);
      if (minimum) acc = std::fma(min, da * static_cast<float>(sum), acc);
    } else {
      float scales[2], mins[2];
      int isums[2] = {}, sums[2] = {};
      for (size_t half = 0; half < 2; ++half) {
        const size_t first = 32 * g + 16 * half;
        for (size_t i = first; i < first + 16; ++i) {
          isums[half] += row.q[i] * w[i].q;
          sums[half] += row.q[i];
        }
        scales[half] = head.scale * static_cast<float>(w[first].scale_factor);
        mins[half] = head.min * static_cast<float>(w[first].min_factor);
      }
      float both = scales[0] * static_cast<float>(isums[0]);
      both = std::fma(scales[1], static_cast<float>(isums[1]), both);
      if (minimum) {
        both = std::fma(mins[0], static_cast<float>(sums[0]), both);
        both = std::fma(mins[1], static_cast<float>(sums[1]), both);
      }
      acc = std::fma(da, both, acc);
    }
  }
  return acc;
}

std::vector<float> weight_values(WeightType type, const uint8_t* w, int64_t k) {
  std::vector<float> out(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) {
    float& value = out[static_cast<size_t>(i)];
    if (type == WeightType::kF32) {
      std::memcpy(&value, w + 4 * i, 4);
    } else if (type == WeightType::kF16) {
      value = f16_to_f32(u16(w + 2 * i));
    } else if (type == WeightType::kBf16) {
      value = bf16_to_f32(u16(w + 2 * i));
    } else {
      value = test::block_weight(type, w, i).value();
    }
  }
  return out;
}

float reference_dot_f32(const std::vector<float>& w, const float* x) {
  float acc = 0;
  for (size_t i = 0; i < w.size(); ++i) acc = std::fma(x[i], w[i], acc);
  return acc;
}

float reference_dot_bf16(const uint8_t* w, const float* x, int64_t k) {
  float acc = 0;
  for (int64_t i = 0; i < k; i += 2) {
    float x1 = 0, w1 = 0;
    if (i + 1 < k) {
      x1 = bf16_to_f32(f32_to_bf16(x[i + 1]));
      w1 = bf16_to_f32(u16(w + 2 * (i + 1)));
    }
    acc = std::fma(x1, w1, acc);
    acc = std::fma(bf16_to_f32(f32_to_bf16(x[i])), bf16_to_f32(u16(w + 2 * i)), acc);
  }
  return acc;
}

float reference_exp(float x) {
  if (std::isnan(x)) return x;
  if (x < -87.0f) return 0.0f;
  const float y = x > 88.0f ? 88.0f : x;
  // The product is exact in double, so that it is rounded once, to an integer.
  const double turns = static_cast<double>(y) * static_cast<double>(0x1.715476p+0f);
  const auto n = static_cast<float>(std::nearbyint(turns));
  float r = std::fma(-n, 0x1.63p-1f, y);
  r = std::fma(-n, -0x1.bd0106p-13f, r);
  float p = 0x1.6d113cp-10f;
  for (float c : {0x1.120ba2p-7f, 0x1.55551ap-5f, 0x1.5554dcp-3f, 0.5f, 1.0f, 1.0f}) p = std::fma(p, r, c);
  return std::ldexp(p, static_cast<int>(n));
}

float reference_tree(std::vector<float> lanes) {
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) lanes[i] = lanes[i] + lanes[i + width];
  }
  return lanes[0];
}

void ReferenceRows::append(KvType type, const float* row, int64_t head_dim) {
  std::vector<float> out(row, row + head_dim);
  float scale = 1;
  if (type == KvType::kBf16) {
    for (float& x : out) x = bf16_to_f32(f32_to_bf16(x));
  }
  if (type == KvType::kQ8_0) {
    const ReferenceRow quantized = reference_quantize(row, head_dim, head_dim);
    out.assign(quantized.q.begin(), quantized.q.end());
    scale = f16_to_f32(quantized.d[0]);
  }
  values.push_back(std::move(out));
  scales.push_back(scale);
}

ReferencePartial reference_leaf(const std::vector<float>& q, const ReferenceRows& k, const ReferenceRows& v,
                                int64_t valid) {
  const auto n = static_cast<size_t>(valid);
  std::vector<float> s(n);
  for (size_t p = 0; p < n; ++p) {
    for (size_t i = 0; i < q.size(); ++i) s[p] = std::fma(q[i], k.values[p][i], s[p]);
    s[p] = s[p] * k.scales[p];
  }
  ReferencePartial out;
  out.m = s[0];
  for (float x : s) out.m = x > out.m ? x : out.m;
  std::vector<float> lanes(16);
  out.o.assign(q.size(), 0.0f);
  for (size_t p = 0; p < n; ++p) {
    const float e = reference_exp(s[p] - out.m);
    lanes[p % 16] = lanes[p % 16] + e;
    const float weight = e * v.scales[p];
    for (size_t i = 0; i < q.size(); ++i) out.o[i] = std::fma(weight, v.values[p][i], out.o[i]);
  }
  out.l = reference_tree(lanes);
  return out;
}

ReferencePartial reference_merge(const ReferencePartial& left, const ReferencePartial& right) {
  ReferencePartial out;
  out.m = left.m > right.m ? left.m : right.m;
  const float a = reference_exp(left.m - out.m);
  const float b = reference_exp(right.m - out.m);
  out.l = std::fma(left.l, a, right.l * b);
  for (size_t i = 0; i < left.o.size(); ++i) out.o.push_back(std::fma(left.o[i], a, right.o[i] * b));
  return out;
}

}  // namespace kvasir::ops
