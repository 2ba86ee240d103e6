#include "exec/cpu/faults.h"

#include <algorithm>
#include <vector>

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

KvPlanes planes_of_next_layer(const Step& step, const CacheGeometry& geometry, const StepSlice& slice,
                              uint32_t block, uint32_t layer) {
  const bool staged = slice.first_staged != StepSlice::kNothingStaged &&
                      step.staged[slice.first_staged + layer * slice.blocks + block].present();
  return step.planes(geometry, slice, block, staged ? (layer + 1) % geometry.layers : layer);
}

}  // namespace kvasir
