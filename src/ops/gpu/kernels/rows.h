// What happens to single rows between products. A block of 256 threads takes a row.
#pragma once

#include "ops/gpu/device.h"
#include "ops/gpu/kernel_args.h"
#include "ops/gpu/kernels/row_norm.h"
#include "ops/gpu/layouts.h"

namespace kvasir::ops::gpu {

struct Embed {
  static constexpr int kThreads = kRowThreads;
  static Shape shape(const EmbedArgs& a) { return {a.count, 1, kThreads, 0}; }

  static KV_DEVICE void run(const EmbedArgs& a) {
    const RowPlace& row = a.rows[block_x()];
    const int token = row.token >= 0 ? row.token : a.earlier[-1 - row.token];
    const int64_t position = int64_t{row.position} + a.position_offset;
    const int k_tiles = tiles_for(a.dim);
    for (int i = thread_index(); i < a.dim; i += kRowThreads) {
      float x = bf16_value(a.table[operand_offset(token, i, k_tiles)]);
      if (a.scale != 1) x = x * a.scale;
      if (a.positions != nullptr) x = x + bf16_value(a.positions[operand_offset(position, i, k_tiles)]);
      a.x[int64_t{block_x()} * a.dim + i] = x;
    }
  }
};

struct NormRows {
  static constexpr int kThreads = kRowThreads;
  static Shape shape(const NormRowsArgs& a) { return {a.count, 1, kThreads, kScratchBytes}; }

  static KV_DEVICE void run(const NormRowsArgs& a) {
    const int r = block_x();
    const float* x = a.x + (a.source == nullptr ? r : a.source[r]) * a.x_stride;
    auto* scratch = reinterpret_cast<float*>(shared_memory());
    const RowNorm row = measure_row(a.norm, a.n, scratch, [&](int i) { return x[i]; });
    const int k_tiles = tiles_for(a.n);
    KV_UNROLL_8
    for (int i = thread_index(); i < k_tiles * kTileK; i += kRowThreads) {
      const float y = i < a.n ? normalised(a.norm, row, i, x[i]) : 0.0F;
      if (a.image != nullptr) a.image[operand_offset(r, i, k_tiles)] = round_bf16(y);
      if (a.values != nullptr && i < a.n) a.values[int64_t{r} * a.n + i] = y;
    }
  }
};

struct AddBranch {
  static constexpr int kThreads = kRowThreads;
  static Shape shape(const AddBranchArgs& a) { return {a.count, 1, kThreads, kScratchBytes}; }

  static KV_DEVICE void run(const AddBranchArgs& a) {
    const float* y = a.y + int64_t{block_x()} * a.n;
    float* x = a.x + int64_t{block_x()} * a.n;
    auto* scratch = reinterpret_cast<float*>(shared_memory());
    const auto load = [&](int i) { return a.bias == nullptr ? y[i] : y[i] + a.bias[i]; };
    const RowNorm row = measure_row(a.norm, a.n, scratch, load);
    KV_UNROLL_8
    for (int i = thread_index(); i < a.n; i += kRowThreads) {
      float v = normalised(a.norm, row, i, load(i));
      if (a.scale != 1) v = v * a.scale;
      x[i] = x[i] + v;
    }
  }
};

// A row is long, so several blocks take it.
struct ActivateRows {
  static constexpr int kThreads = kRowThreads;
  static constexpr int kPart = 4 * kRowThreads;
  static Shape shape(const ActivateArgs& a) {
    return {a.count, (tiles_for(a.n) * kTileK + kPart - 1) / kPart, kThreads, 0};
  }

  static KV_DEVICE float activated(const ActivateArgs& a, int row, int i) {
    if (a.kind == Activate::kRelu) {
      const float up = a.in[int64_t{row} * a.n + i];
      const float x = a.bias == nullptr ? up : up + a.bias[i];
      return x > 0.0F ? x : 0.0F;
    }
    const float* gate = a.in + int64_t{row} * 2 * a.n;
    return (a.kind == Activate::kSilu ? silu(gate[i]) : gelu(gate[i])) * gate[a.n + i];
  }

  static KV_DEVICE void run(const ActivateArgs& a) {
    const int k_tiles = tiles_for(a.n);
    const int begin = block_y() * kPart;
    const int end = begin + kPart < k_tiles * kTileK ? begin + kPart : k_tiles * kTileK;
    KV_UNROLL_LOOP
    for (int part = 0; part < kPart; part += kRowThreads) {
      const int i = begin + part + thread_index();
      if (i >= end) continue;
      const float y = i < a.n ? activated(a, block_x(), i) : 0.0F;
      a.image[operand_offset(block_x(), i, k_tiles)] = round_bf16(y);
    }
  }
};

}  // namespace kvasir::ops::gpu
