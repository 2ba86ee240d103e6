// How a warp writes its part of a product: 16 features, and tokens in groups of eight.
#pragma once

#include "ops/gpu/kernel_args.h"
#include "ops/gpu/kernels/hopper.h"
#include "ops/gpu/layouts.h"

namespace kvasir::ops::gpu {

__device__ __forceinline__ void write_output(const GemmArgs& args, int feature, int row, float value) {
  if (feature >= args.n || row >= args.rows) return;
  float* to = args.out + row * args.out_stride + feature;
  *to = args.accumulate != 0 ? *to + value : value;
}

// d: the accumulators of 16 features from `feature` and 8 tokens from `row`, as mma.m16n8k16 has them. Eight
// lanes write neighbouring features.
__device__ __forceinline__ void write_outputs(const GemmArgs& args, int feature, int row, float d0, float d1,
                                              float d2, float d3) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first = feature + lane / 4, token = row + lane % 4 * 2;
  write_output(args, first, token, d0);
  write_output(args, first, token + 1, d1);
  write_output(args, first + 8, token, d2);
  write_output(args, first + 8, token + 1, d3);
}

}  // namespace kvasir::ops::gpu
