// Products of few rows (up to 64), bound by the memory that the weights come from.
//
// A slice is 16 features: 2 KiB of each of the weights' tiles. A block, one per multiprocessor, takes an even
// share of the slices, up to `slices` at a time, and walks k through a ring in shared memory; a stage has 64
// of k of those slices and of all rows. One warp fills the ring by bulk copies. The others multiply, one
// slice and kRows / kParts rows each; every output stays one chain over k, in one warp's registers.
#pragma once

#include "ops/gpu/kernels/gemm_output.h"

namespace kvasir::ops::gpu {

struct StreamPlan {
  int slices;  // at a time
  int stages;  // of the ring
};

constexpr int kSliceFeatures = 16;
constexpr int kSliceBytes = kSliceFeatures * 128;

template <int kRows>
constexpr int stream_stage_bytes(int slices) {
  return slices * kSliceBytes + kRows * 128;
}

// Half a stage of a warp: 32 of k.
template <int kTiles>
struct StreamFragments {
  uint32_t w[2][4];
  uint32_t x[kTiles][4];
};

template <int kTiles>
__device__ __forceinline__ void load_fragments(StreamFragments<kTiles>& f, uint32_t w, uint32_t x, int half) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int w_row = lane % 8 + (lane / 8) % 2 * 8;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int chunk = half * 4 + step * 2 + lane / 16;
    hopper::load_matrices(f.w[step], w + w_row * 128 + (chunk ^ (w_row % 8)) * 16);
  }
  const int x_chunk = half * 4 + lane / 8;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int row = tile * 8 + lane % 8;
    hopper::load_matrices(f.x[tile], x + row * 128 + (x_chunk ^ (row % 8)) * 16);
  }
}

template <int kTiles>
__device__ __forceinline__ void multiply(float (&d)[kTiles][4], const StreamFragments<kTiles>& f) {
#pragma unroll
  for (int step = 0; step < 2; ++step) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      fused_step(d[tile], f.w[step], f.x[tile][step * 2], f.x[tile][step * 2 + 1]);
    }
  }
}

// What the copying warp does.
template <int kRows>
struct StreamCopier {
  const GemmArgs& args;
  const StreamPlan& plan;
  uint32_t ring, full, empty;
  uint64_t hint = hopper::evict_first();
  int tiles = tiles_for(args.k);
  int lane = static_cast<int>(threadIdx.x % 32);
  int stage = 0;
  uint32_t parity = 1;  // of the phase in which the stage was emptied

  __device__ __forceinline__ uint32_t at(int in_ring) const {
    return ring + in_ring * stream_stage_bytes<kRows>(plan.slices);
  }

  // The weights of one stage. Slices of one tile are neighbours: lane i copies those of the i-th tile that
  // the block touches.
  __device__ __forceinline__ void weights(int first, int count, int tile) {
    const int tile_row = first / 4 + lane;
    const int from = max(first, tile_row * 4), to = min(first + count, tile_row * 4 + 4);
    hopper::barrier_wait(empty + stage * 8, parity);
    if (lane == 0) hopper::barrier_arrive_expecting(full + stage * 8, count * kSliceBytes + kRows * 128);
    __syncwarp();
    if (from < to) {
      const uint16_t* source = args.weights + (int64_t{tile_row} * tiles + tile) * kTileElements +
                               (from - tile_row * 4) * (kSliceBytes / 2);
      hopper::bulk_load_hinted(at(stage) + (from - first) * kSliceBytes, source, (to - from) * kSliceBytes,
                               full + stage * 8, hint);
    }
  }

  __device__ __forceinline__ void rows(int in_ring, int tile) {
    if (lane != 0) return;
    hopper::bulk_load(at(in_ring) + plan.slices * kSliceBytes, args.x + int64_t{tile} * kTileElements,
                      kRows * 128, full + in_ring * 8);
  }

  __device__ __forceinline__ void next() {
    if (++stage == plan.stages) {
      stage = 0;
      parity ^= 1;
    }
  }

  // All slices in [begin, end). Weights are there from the beginning; rows only when the kernel before has
  // ended.
  __device__ __forceinline__ void run(int begin, int end) {
    const int early = min(plan.stages, tiles);
    for (int first = begin; first < end; first += plan.slices) {
      const int count = min(end - first, plan.slices);
      int tile = 0;
      if (first == begin) {
        for (; tile < early; ++tile, next()) weights(first, count, tile);
        hopper::wait_for_previous();
        for (int i = 0; i < early; ++i) rows(i, i);
      }
      for (; tile < tiles; ++tile, next()) {
        weights(first, count, tile);
        rows(stage, tile);
      }
    }
  }
};

// Warps that multiply, at most. With the one that copies they leave each thread 128 registers; 64 where two
// blocks are to fit, so that one begins while the other ends.
constexpr int kStreamMultipliers = 15;

// kRows: a multiple of 8 up to 64, at least args.rows; kParts divides kRows / 8. The block has
// slices * kParts + 1 warps and stages * (stage bytes + 16) + 1,024 bytes of dynamic shared memory.
template <int kRows, int kParts>
__global__ void __launch_bounds__((kStreamMultipliers + 1) * 32, kRows <= 16 ? 2 : 1)
    gemm_stream_kernel(const __grid_constant__ GemmArgs args, const __grid_constant__ StreamPlan plan) {
  constexpr int kTiles = kRows / 8 / kParts;
  extern __shared__ uint8_t shared[];
  const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
  const int stage_bytes = stream_stage_bytes<kRows>(plan.slices);
  const uint32_t full = base + plan.stages * stage_bytes, empty = full + plan.stages * 8;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int multipliers = plan.slices * kParts;
  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.stages; ++i) {
      hopper::barrier_init(full + i * 8, 1);
      hopper::barrier_init(empty + i * 8, multipliers);
    }
    hopper::barrier_init_done();
  }
  __syncthreads();

  const auto all = tiles_for(args.n) * (kTileRows / kSliceFeatures);
  const auto share_of = [&](int block) {
    return static_cast<int>(int64_t{all} * block / static_cast<int>(gridDim.x));
  };
  const int begin = share_of(static_cast<int>(blockIdx.x)), end = share_of(static_cast<int>(blockIdx.x) + 1);
  const int tiles = tiles_for(args.k);
  if (threadIdx.x == 0) hopper::let_next_begin();
  if (warp == multipliers) {
    StreamCopier<kRows>{args, plan, base, full, empty}.run(begin, end);
    return;
  }
  const int slice = warp / kParts, part = warp % kParts;
  hopper::wait_for_previous();  // before outputs are read or written
  uint32_t stage = 0, parity = 0;
  for (int first = begin; first < end; first += plan.slices) {
    float d[kTiles][4] = {};
    for (int tile = 0; tile < tiles; ++tile) {
      const uint32_t at = base + stage * stage_bytes;
      const uint32_t w = at + slice * kSliceBytes, x = at + plan.slices * kSliceBytes + part * kTiles * 1024;
      hopper::barrier_wait(full + stage * 8, parity);
      StreamFragments<kTiles> low, high;
      load_fragments(low, w, x, 0);
      load_fragments(high, w, x, 1);
      __syncwarp();
      if (lane == 0) hopper::barrier_arrive(empty + stage * 8);
      multiply(d, low);
      multiply(d, high);
      if (++stage == static_cast<uint32_t>(plan.stages)) {
        stage = 0;
        parity ^= 1;
      }
    }
    // The last of a block's slices may be fewer: the other warps have multiplied what lay there.
    if (first + slice < end) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        write_outputs(args, (first + slice) * kSliceFeatures, part * kTiles * 8 + tile * 8, d[tile][0],
                      d[tile][1], d[tile][2], d[tile][3]);
      }
    }
  }
}

}  // namespace kvasir::ops::gpu
