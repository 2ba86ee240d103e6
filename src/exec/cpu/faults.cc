#include "exec/cpu/faults.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "ops/x_layout.h"

namespace kvasir {

void attend_own_unrounded(const ops::Kernels& kernels, ops::AttentionLeafArgs args, const float* k,
                          const float* v) {
  std::vector<float> own(static_cast<size_t>(ops::partial_floats(args.heads, args.head_dim)));
  for (int64_t h = 0; h < args.heads; ++h) {
    float score = 0;
    for (int64_t i = 0; i < args.head_dim; ++i) {
      score = __builtin_fmaf(args.q[h * args.head_dim + i], k[i], score);
    }
    own[static_cast<size_t>(h)] = score;
    own[static_cast<size_t>(args.heads + h)] = 1.0f;
    std::copy_n(v, args.head_dim, own.begin() + 2 * args.heads + h * args.head_dim);
  }
  const int32_t others = args.valid[0] - 1;
  if (others == 0) {
    std::copy(own.begin(), own.end(), args.out);
    return;
  }
  args.valid = &others;
  kernels.attention_leaf(args);
  kernels.merge(args.out, own.data(), args.heads, args.head_dim, args.out);
}

void nothing_attended(int64_t heads, int64_t head_dim, float* record) {
  std::fill_n(record, ops::partial_floats(heads, head_dim), 0.0f);
  std::fill_n(record, heads, -1e30f);  // the maximum; not -inf, of which two make no number
}

KvPlanes planes_of_next_layer(const Step& step, const CacheGeometry& geometry, const StepSlice& slice,
                              uint32_t block, uint32_t layer) {
  const bool staged = step.is_staged(slice, block, layer);
  return step.planes(geometry, slice, block, staged ? (layer + 1) % geometry.layers : layer);
}

void write_x_with_fault(ops::ActivationType type, const float* row, int64_t k, int64_t token,
                        int64_t block_tokens, void* piece) {
  if (type == ops::ActivationType::kF32) {
    for (int64_t i = 0; i < k; ++i) {
      ops::f32_x_rows(piece)[token * k + i] = ops::bf16_to_f32(ops::f32_to_bf16(row[i]));
    }
  } else if (type == ops::ActivationType::kBf16) {
    const ops::Bf16Rows to = ops::bf16_x_rows(piece, block_tokens, k);
    for (int64_t i = 0; i < k; ++i) {
      to.x[token * to.stride + i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(row[i]) >> 16);
    }
  } else {
    const ops::Int8XRows to = ops::int8_x_rows(piece, block_tokens, k);
    for (int64_t g = 0; g < k / ops::kGroup; ++g) {
      const float* from = row + g * ops::kGroup;
      float amax = 0;
      for (int64_t i = 0; i < ops::kGroup; ++i) amax = std::max(amax, std::fabs(from[i]));
      const float scale = amax / 127.0f;
      to.d[token * (k / ops::kGroup) + g] = ops::f32_to_f16(scale);
      for (int64_t i = 0; i < ops::kGroup; ++i) {
        const float value = scale > 0 ? std::nearbyint(from[i] / scale) : 0;
        to.q[token * k + g * ops::kGroup + i] = static_cast<int8_t>(value);
      }
    }
  }
}

}  // namespace kvasir
