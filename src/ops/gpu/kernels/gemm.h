// The matrix product: weights are the rows of the instruction, tokens its columns.
#pragma once

#include "ops/gpu/device.h"
#include "ops/gpu/kernel_args.h"
#include "ops/gpu/layouts.h"

namespace kvasir::ops::gpu {

// A block computes 64 outputs of kTokens rows, 16 outputs a warp. Tiles of both operands come through a ring
// of stages, each filled by two copies.
template <int kTokens>
struct Gemm {
  static_assert(kTokens == 8 || kTokens == 16 || kTokens == 32 || kTokens == 64);
  static constexpr int kThreads = 128;
  static constexpr int kStages = 4;
  static constexpr int kRowBytes = 2 * kTileK;
  static constexpr int kXBytes = kTokens * kRowBytes;
  static constexpr int kStageBytes = kTileBytes + kXBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + kStages * static_cast<int>(sizeof(CopyBarrier));
  static constexpr int kColumnTiles = kTokens / 8;

  static Shape shape(const GemmArgs& a) {
    return {tiles_for(a.n), (a.rows + kTokens - 1) / kTokens, kThreads, kSharedBytes};
  }

  static KV_DEVICE uint16_t* weights_of(int stage) {
    return reinterpret_cast<uint16_t*>(shared_memory() + stage * kStageBytes);
  }
  static KV_DEVICE uint16_t* rows_of(int stage) { return weights_of(stage) + kTileElements; }
  static KV_DEVICE CopyBarrier* full(int stage) {
    return reinterpret_cast<CopyBarrier*>(shared_memory() + kStages * kStageBytes) + stage;
  }

  // By one thread: the operands of a tile of k.
  static KV_DEVICE void fetch(const GemmArgs& a, int k_tile, int k_tiles) {
    const int stage = k_tile % kStages;
    const int64_t row = int64_t{block_y()} * kTokens;
    barrier_arrive_expecting(full(stage), kStageBytes);
    copy_to_shared(weights_of(stage), a.weights + (int64_t{block_x()} * k_tiles + k_tile) * kTileElements,
                   kTileBytes, full(stage));
    copy_to_shared(rows_of(stage), a.x + operand_offset(row, int64_t{k_tile} * kTileK, k_tiles), kXBytes,
                   full(stage));
  }

  // One tile of k.
  static KV_DEVICE void multiply(int stage, float (&acc)[kColumnTiles][4]) {
    const uint16_t* weights = weights_of(stage);
    const uint16_t* x = rows_of(stage);
    const int lane = lane_index();
    KV_UNROLL_LOOP
    for (int k = 0; k < kTileK; k += 32) {
      uint32_t w[2][4];
      KV_UNROLL_LOOP
      for (int half = 0; half < 2; ++half) {
        load_matrices(
            weights + panel_offset(16 * warp_index() + lane % 16, k + 16 * half + lane / 16 * 8, kTileK),
            w[half]);
      }
      KV_UNROLL_LOOP
      for (int t = 0; t < kColumnTiles; ++t) {
        uint32_t b[4];  // 8 rows, 32 of k
        load_matrices(x + panel_offset(8 * t + lane % 8, k + lane / 8 * 8, kTileK), b);
        fused_step(acc[t], w[0], b[0], b[1]);
        fused_step(acc[t], w[1], b[2], b[3]);
      }
    }
  }

  static KV_DEVICE void store(const GemmArgs& a, const float (&acc)[kColumnTiles][4]) {
    const int lane = lane_index();
    KV_UNROLL_LOOP
    for (int t = 0; t < kColumnTiles; ++t) {
      KV_UNROLL_LOOP
      for (int i = 0; i < 4; ++i) {
        const int column = block_x() * kTileRows + 16 * warp_index() + lane / 4 + i / 2 * 8;
        const int row = block_y() * kTokens + 8 * t + lane % 4 * 2 + i % 2;
        if (row >= a.rows || column >= a.n) continue;
        float* out = a.out + row * a.out_stride + column;
        *out = a.accumulate != 0 ? *out + acc[t][i] : acc[t][i];
      }
    }
  }

  static KV_DEVICE void run(const GemmArgs& a) {
    const int k_tiles = tiles_for(a.k);
    const bool leads = thread_index() == 0;
    if (leads) {
      for (int s = 0; s < kStages; ++s) barrier_init(full(s), 1);
      fence_barrier_init();
    }
    sync_block();
    if (leads) {
      for (int s = 0; s < kStages && s < k_tiles; ++s) fetch(a, s, k_tiles);
    }
    float acc[kColumnTiles][4] = {};
    for (int tile = 0; tile < k_tiles; ++tile) {
      const int stage = tile % kStages;
      barrier_wait(full(stage), static_cast<uint32_t>(tile / kStages % 2));
      multiply(stage, acc);
      sync_block();  // all have read the stage
      if (leads && tile + kStages < k_tiles) fetch(a, tile + kStages, k_tiles);
    }
    store(a, acc);
  }
};

}  // namespace kvasir::ops::gpu
