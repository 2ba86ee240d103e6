// Norms over a row by a block of 256 threads, a partial sum each, or by a warp.
#pragma once

#include "ops/gpu/device.h"
#include "ops/gpu/kernel_args.h"

namespace kvasir::ops::gpu {

// Threads of a block that takes a row, and partial sums of a norm.
constexpr int kRowThreads = 256;
// The scratch of block_sum, in shared memory.
constexpr int kScratchBytes = kRowThreads * static_cast<int>(sizeof(float));

KV_DEVICE float warp_sum(float value) {
  KV_UNROLL_LOOP
  for (int width = kWarp / 2; width > 0; width /= 2) value = value + shuffle_xor(value, width);
  return value;
}

// The tree over one value of each thread; every thread gets it. scratch: [kRowThreads], shared.
KV_DEVICE float block_sum(float value, float* scratch) {
  const int t = thread_index();
  sync_block();  // the last result has been read
  scratch[t] = value;
  sync_block();
  for (int width = kRowThreads / 2; width > kWarp; width /= 2) {
    if (t < width) scratch[t] = scratch[t] + scratch[t + width];
    sync_block();
  }
  if (t < kWarp) {
    const float sum = warp_sum(scratch[t] + scratch[t + kWarp]);
    if (t == 0) scratch[0] = sum;
  }
  sync_block();
  return scratch[0];
}

struct RowNorm {
  float mean;
  float inverse;
};

KV_DEVICE float inverse_deviation(float squares, int n, float epsilon) {
  return 1.0F / sqrtf(squares / static_cast<float>(n) + epsilon);
}

// By the whole block. load(i): the row's element i.
template <typename Load>
KV_DEVICE RowNorm measure_row(const NormArgs& norm, int n, float* scratch, const Load& load) {
  RowNorm row = {0, 1};
  if (norm.kind == NormOf::kNone) return row;
  if (norm.kind == NormOf::kLayer) {
    float sum = 0;
    KV_UNROLL_8
    for (int i = thread_index(); i < n; i += kRowThreads) sum = sum + load(i);
    row.mean = block_sum(sum, scratch) / static_cast<float>(n);
  }
  float squares = 0;
  KV_UNROLL_8
  for (int i = thread_index(); i < n; i += kRowThreads) {
    const float x = norm.kind == NormOf::kLayer ? load(i) - row.mean : load(i);
    squares = fmaf(x, x, squares);
  }
  row.inverse = inverse_deviation(block_sum(squares, scratch), n, norm.epsilon);
  return row;
}

KV_DEVICE float normalised(const NormArgs& norm, const RowNorm& row, int i, float x) {
  if (norm.kind == NormOf::kNone) return x;
  if (norm.kind == NormOf::kRms) return (x * row.inverse) * norm.weight[i];
  const float weighed = ((x - row.mean) * row.inverse) * norm.weight[i];
  return norm.bias == nullptr ? weighed : weighed + norm.bias[i];
}

// The RMSNorm of a row of at most 256, in place, by a warp. x: shared.
KV_DEVICE void normalise_head(float* x, int n, const float* weight, float epsilon) {
  constexpr int kEach = kRowThreads / kWarp;
  float squares[kEach];
  KV_UNROLL_LOOP
  for (int j = 0; j < kEach; ++j) {
    const int i = lane_index() + kWarp * j;
    const float v = i < n ? x[i] : 0.0F;
    squares[j] = v * v;
  }
  KV_UNROLL_LOOP
  for (int width = kEach / 2; width > 0; width /= 2) {
    KV_UNROLL_LOOP
    for (int j = 0; j < width; ++j) squares[j] = squares[j] + squares[j + width];
  }
  const float inverse = inverse_deviation(warp_sum(squares[0]), n, epsilon);
  for (int i = lane_index(); i < n; i += kWarp) x[i] = (x[i] * inverse) * weight[i];
}

}  // namespace kvasir::ops::gpu
