// Seeded faults of quantisation and of the softmax sum, in plain scalar code.
#include "ops/cpu/faults.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/mutant.h"

namespace kvasir::ops {
namespace {

float group_scale(const float* x) {
  float amax = 0.0f;
  for (int64_t i = 0; i < kGroup; ++i) amax = std::max(amax, std::fabs(x[i]));
  return amax / 127.0f;
}

float k_element(const AttentionLeafArgs& a, int64_t position, int64_t dim) {
  const void* tile = a.k_tiles[position / a.block_tokens];
  const int64_t inside = position % a.block_tokens;
  const int64_t at = (inside / kLanes * a.head_dim + dim) * kLanes + inside % kLanes;
  return a.type == KvType::kF32 ? static_cast<const float*>(tile)[at]
                                : bf16_to_f32(static_cast<const uint16_t*>(tile)[at]);
}

}  // namespace

void quantize_with_fault(const float* x, int64_t x_stride, const QuantizedRows& out, int64_t row_begin,
                         int64_t row_end) {
  const int64_t groups = out.k / kGroup;
  const bool batch = mutant(Mutant::kBatchScale);
  for (int64_t r = row_begin; r < row_end; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const float* from = x + r * x_stride + g * kGroup;
      const float exact = group_scale(batch ? x + g * kGroup : from);
      const uint16_t bits = f32_to_f16(std::min(exact, 65504.0f));
      const float used = batch ? f16_to_f32(bits) : exact;
      const int64_t at = r * groups + g;
      out.d[at] = bits;
      out.sums[at] = 0;
      for (int64_t i = 0; i < kGroup; ++i) {
        const float scaled = used > 0.0f ? std::nearbyint(from[i] / used) : 0.0f;
        const float clamped = std::min(std::max(scaled, -127.0f), 127.0f);
        out.q[at * kGroup + i] = static_cast<int8_t>(clamped);
        out.sums[at] += out.q[at * kGroup + i];
      }
      out.moments[at] = f16_to_f32(bits) * static_cast<float>(out.sums[at]);
    }
  }
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

void resum_with_fault(const KernelTable& table, const AttentionLeafArgs& args) {
  std::vector<float> e(static_cast<size_t>(kLeafTokens));
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t h = 0; h < args.heads; ++h) {
      const float* q = args.q + r * args.q_stride + h * args.head_dim;
      float* record = args.out + r * args.out_stride;
      for (int64_t p = 0; p < args.valid[r]; ++p) {
        float s = 0.0f;
        for (int64_t i = 0; i < args.head_dim; ++i) s = std::fma(q[i], k_element(args, p, i), s);
        e[static_cast<size_t>(p)] = s;
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
