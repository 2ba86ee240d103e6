// Seeded faults of quantisation and of the softmax sum, in plain scalar code.
#include "ops/cpu/faults.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/mutant.h"
#include "ops/weight_traits.h"

namespace kvasir::ops {
namespace {

float exact_scale(const float* x, int64_t n) {
  float amax = 0.0f;
  for (int64_t i = 0; i < n; ++i) amax = std::max(amax, std::fabs(x[i]));
  return amax / 127.0f;
}

int8_t to_int8(float value, float scale) {
  const float scaled = scale > 0.0f ? std::nearbyint(value / scale) : 0.0f;
  return static_cast<int8_t>(std::min(std::max(scaled, -127.0f), 127.0f));
}

float score(const AttentionLeafArgs& a, const float* q, int64_t position) {
  const int64_t inside = position % a.block_tokens;
  const int64_t lane = inside % kLanes;
  const auto* run = static_cast<const uint8_t*>(a.k_tiles[position / a.block_tokens]) +
                    inside / kLanes * kLanes * kv_row_bytes(a.type, a.head_dim);
  float s = 0.0f;
  for (int64_t i = 0; i < a.head_dim; ++i) {
    const int64_t at = a.value_dim > 0 ? lane * a.head_dim + i : i * kLanes + lane;
    float k = 0.0f;
    if (a.type == KvType::kF32) k = reinterpret_cast<const float*>(run)[at];
    if (a.type == KvType::kBf16) k = bf16_to_f32(reinterpret_cast<const uint16_t*>(run)[at]);
    if (a.type == KvType::kQ8_0) k = reinterpret_cast<const int8_t*>(run)[at];
    s = std::fma(q[i], k, s);
  }
  if (a.type != KvType::kQ8_0) return s;
  return s * f16_to_f32(reinterpret_cast<const uint16_t*>(run + kLanes * a.head_dim)[lane]);
}

}  // namespace

void quantize_with_fault(const float* x, int64_t x_stride, const QuantizedRows& out, int64_t row_begin,
                         int64_t row_end) {
  const int64_t groups = out.k / kGroup;
  const bool batch = mutant(Mutant::kBatchScale);
  for (int64_t r = row_begin; r < row_end; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const float* from = x + r * x_stride + g * kGroup;
      const float exact = exact_scale(batch ? x + g * kGroup : from, kGroup);
      const uint16_t bits = f32_to_f16(std::min(exact, 65504.0f));
      const float used = batch ? f16_to_f32(bits) : exact;
      const int64_t at = r * groups + g;
      out.scales[at] = f16_to_f32(bits);
      int32_t sums[2] = {};
      for (int64_t i = 0; i < kGroup; ++i) {
        out.q[at * kGroup + i] = to_int8(from[i], used);
        sums[i / (kGroup / 2)] += out.q[at * kGroup + i];
      }
      out.sums[2 * at] = static_cast<int16_t>(-sums[0] - sums[1]);
      out.sums[2 * at + 1] = static_cast<int16_t>(-sums[1]);
      out.moments[at] = out.scales[at] * static_cast<float>(sums[0] + sums[1]);
    }
  }
}

void store_kv_with_fault(const KvShape& shape, const float* row, int64_t lane, bool is_k, uint8_t* run) {
  if (shape.type != KvType::kQ8_0) return;
  auto* scales = reinterpret_cast<uint16_t*>(run + kLanes * shape.head_dim);
  if (mutant(Mutant::kKvScaleShared)) {
    for (int64_t i = 0; i < lane; ++i) scales[i] = scales[lane];
    return;
  }
  const float exact = exact_scale(row, shape.head_dim);
  for (int64_t i = 0; i < shape.head_dim; ++i) {
    run[is_k ? i * kLanes + lane : lane * shape.head_dim + i] = static_cast<uint8_t>(to_int8(row[i], exact));
  }
}

void copy_scale_with_fault(const KvShape& shape, int64_t lane, const uint8_t* k_run, uint8_t* v_run) {
  if (shape.type != KvType::kQ8_0) return;
  const int64_t at = kLanes * shape.head_dim + 2 * lane;
  std::copy_n(k_run + at, 2, v_run + at);
}

void gemm_bf16_with_fault(const KernelTable& table, GemmArgs args) {
  const int64_t row_elements = args.row_end * args.lda;
  const int64_t weight_elements = args.panel_end * args.panel_stride / 2;
  std::vector<uint16_t> rows(args.ab, args.ab + row_elements);
  const auto* packed = reinterpret_cast<const uint16_t*>(args.w.data);
  std::vector<uint16_t> weights(packed, packed + weight_elements);
  for (auto* v : {&rows, &weights}) {
    for (size_t i = 0; i + 1 < v->size(); i += 2) std::swap((*v)[i], (*v)[i + 1]);
  }
  args.ab = rows.data();
  args.w.data = reinterpret_cast<const uint8_t*>(weights.data());
  table.gemm_bf16(args);
}

void gemm_int8_with_fault(const KernelTable& table, GemmArgs args) {
  const WeightTraits& t = kWeightTraits[static_cast<size_t>(args.w.type)];
  constexpr size_t kLine = 64;
  const auto bytes = static_cast<size_t>(args.panel_end * args.panel_stride);
  std::vector<uint8_t> memory(bytes + kLine);
  uint8_t* weights = memory.data() + (kLine - reinterpret_cast<uintptr_t>(memory.data()) % kLine) % kLine;
  std::copy_n(args.w.data, bytes, weights);
  const auto block = static_cast<size_t>(t.block_lines) * kLine;
  const auto scales = static_cast<size_t>(t.scale_bytes * kPanel);
  const size_t all = scales * static_cast<size_t>(t.block_values / kGroup);
  for (size_t end = block; end <= bytes; end += block) {
    std::rotate(weights + end - all, weights + end - all + scales, weights + end);
  }
  args.w.data = weights;
  table.gemm_int8(args);
}

void resum_with_fault(const KernelTable& table, const AttentionLeafArgs& args) {
  std::vector<float> e(static_cast<size_t>(kLeafTokens));
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t h = 0; h < args.heads; ++h) {
      const float* q = args.q + r * args.q_stride + h * args.head_dim;
      float* record = args.out + r * args.out_stride;
      for (int64_t p = 0; p < args.valid[r]; ++p) {
        e[static_cast<size_t>(p)] = score(args, q, p);
      }
      table.exp_shifted(e.data(), record[h], args.valid[r], e.data());
      // A shift of the lanes alone would not show: the halving tree is the same for every rotation.
      const int64_t first = std::min(args.valid[0], args.valid[r]) - 1;
      float partial[kLanes] = {};
      for (int64_t i = 0; i < args.valid[r]; ++i) {
        const int64_t p = (first + i) % args.valid[r];
        partial[p % kLanes] += e[static_cast<size_t>(p)];
      }
      for (int64_t width = kLanes / 2; width > 0; width /= 2) {
        for (int64_t i = 0; i < width; ++i) partial[i] += partial[i + width];
      }
      record[args.heads + h] = partial[0];
    }
  }
}

}  // namespace kvasir::ops
