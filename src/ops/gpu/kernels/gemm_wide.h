// Products of many rows, bound by the tensor cores: wgmma over tiles of 64 kWarpgroups features x kTokens
// tokens.
//
// A block computes one tile after another. One warp fills a ring in shared memory by bulk copies, each stage
// 64 of k of the weights and of the tokens; kWarpgroups others multiply, 64 features each. The kCluster
// blocks of a cluster take neighbouring features of the same tokens, and each copies its share of the tokens
// to all of them. Every output is one chain over k in the registers of one warpgroup, whatever the tile.
#pragma once

#include "ops/gpu/kernels/gemm_output.h"
#include "ops/gpu/kernels/wgmma.h"

namespace kvasir::ops::gpu {

template <int kWarpgroups, int kTokens>
struct WideTile {
  static constexpr int kFeatures = 64 * kWarpgroups;
  static constexpr int kWeightBytes = kFeatures * 128;
  static constexpr int kTokenBytes = kTokens * 128;
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes;
  static constexpr int kStages = (216 * 1024) / kStageBytes < 8 ? (216 * 1024) / kStageBytes : 8;
  static constexpr int kThreads = 128 * (kWarpgroups + 1);
  static constexpr int kSharedBytes = kStages * (kStageBytes + 16) + 1024;
};

// Which tile a cluster computes at its n-th turn. Tiles that run at the same time share weights and tokens:
// groups of kGroup clusters' features, inside which features change first.
struct WideOrder {
  int features;  // clusters' worth
  int tokens;    // tiles' worth
  __device__ int count() const { return features * tokens; }
  __device__ void at(int number, int* feature, int* token) const {
    constexpr int kGroup = 8;
    const int group = number / (kGroup * tokens), inside = number % (kGroup * tokens);
    const int width = min(kGroup, features - group * kGroup);
    *feature = group * kGroup + inside % width;
    *token = inside / width;
  }
};

template <int kWarpgroups, int kTokens, int kCluster>
__device__ __forceinline__ void wide_fill(const GemmArgs& args, const WideOrder& order, uint32_t ring,
                                          uint32_t full, uint32_t empty, uint32_t rank) {
  using Tile = WideTile<kWarpgroups, kTokens>;
  constexpr int kTokenTiles = kTokens / 64, kShare = kTokenTiles / kCluster;
  static_assert(kShare * kCluster == kTokenTiles);
  const int tiles = tiles_for(args.k);
  const int last_row = (args.rows - 1) / kTileRows;
  const int64_t tile_row = int64_t{tiles} * kTileElements;
  uint32_t stage = 0, parity = 1;
  for (int n = blockIdx.x / kCluster; n < order.count(); n += gridDim.x / kCluster) {
    int feature, token;
    order.at(n, &feature, &token);
    // What this block copies of each stage, at the first k.
    const uint16_t* w = args.weights + (feature * kCluster + rank) * kWarpgroups * tile_row;
    const uint16_t* x[kShare];
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      // Tokens beyond the last tile are never written: any bytes do.
      x[i] = args.x + min(token * kTokenTiles + static_cast<int>(rank) * kShare + i, last_row) * tile_row;
    }
    for (int tile = 0; tile < tiles; ++tile) {
      const uint32_t at = ring + stage * Tile::kStageBytes, barrier = full + stage * 8;
      hopper::barrier_wait(empty + stage * 8, parity);
      hopper::barrier_arrive_expecting(barrier, Tile::kStageBytes);
#pragma unroll
      for (int i = 0; i < kWarpgroups; ++i) {
        hopper::bulk_load(at + i * 8192, w + i * tile_row + tile * kTileElements, 8192, barrier);
      }
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
        const uint16_t* from = x[i] + tile * kTileElements;
        const uint32_t to = at + Tile::kWeightBytes + (rank * kShare + i) * 8192;
        if (kCluster == 1) {
          hopper::bulk_load(to, from, 8192, barrier);
        } else {
          hopper::bulk_load_to_blocks(to, from, 8192, barrier, (1 << kCluster) - 1);
        }
      }
      if (++stage == Tile::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

// The multipliers of stage `stage` of every block that wrote to it are done with it.
template <int kCluster>
__device__ __forceinline__ void wide_release(uint32_t barrier) {
  if (kCluster == 1) {
    if (threadIdx.x % 128 == 0) hopper::barrier_arrive(barrier);
  } else if (threadIdx.x % 128 < kCluster) {
    hopper::barrier_arrive_at(barrier, threadIdx.x % 128);
  }
}

template <int kWarpgroups, int kTokens, int kCluster>
__device__ __forceinline__ void wide_multiply(const GemmArgs& args, const WideOrder& order, uint32_t ring,
                                              uint32_t full, uint32_t empty, uint32_t rank, int warpgroup) {
  using Tile = WideTile<kWarpgroups, kTokens>;
  const int tiles = tiles_for(args.k);
  const int warp = static_cast<int>(threadIdx.x % 128 / 32);
  uint32_t stage = 0, parity = 0;
  for (int n = blockIdx.x / kCluster; n < order.count(); n += gridDim.x / kCluster) {
    int feature, token;
    order.at(n, &feature, &token);
    feature = (feature * kCluster + static_cast<int>(rank)) * Tile::kFeatures + warpgroup * 64 + warp * 16;
    float d[kTokens / 2];
    uint32_t previous = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      const uint32_t at = ring + stage * Tile::kStageBytes;
      hopper::barrier_wait(full + stage * 8, parity);
      const uint64_t w = hopper::tile_descriptor(at + warpgroup * 8192);
      const uint64_t x = hopper::tile_descriptor(at + Tile::kWeightBytes);
      hopper::products_begin();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        hopper::wgmma(d, w + step * 2, x + step * 2, tile != 0 || step != 0);
      }
      hopper::products_commit();
      hopper::products_wait<1>();
      if (tile != 0) wide_release<kCluster>(empty + previous * 8);
      previous = stage;
      if (++stage == Tile::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    hopper::products_wait<0>();
    wide_release<kCluster>(empty + previous * 8);
#pragma unroll
    for (int i = 0; i < kTokens / 8; ++i) {
      write_outputs(args, feature, token * kTokens + i * 8, d[i * 4], d[i * 4 + 1], d[i * 4 + 2],
                    d[i * 4 + 3]);
    }
  }
}

// The grid is a multiple of kCluster; the weights' tiles of 64 features are one of kWarpgroups kCluster. A
// block has WideTile::kThreads threads and kSharedBytes of dynamic shared memory.
template <int kWarpgroups, int kTokens, int kCluster>
__global__ void __launch_bounds__(128 * (kWarpgroups + 1), 1)
    gemm_wide_kernel(const __grid_constant__ GemmArgs args) {
  using Tile = WideTile<kWarpgroups, kTokens>;
  extern __shared__ uint8_t shared[];
  const uint32_t ring = (shared_address(shared) + 1023) & ~1023u;
  const uint32_t full = ring + Tile::kStages * Tile::kStageBytes, empty = full + Tile::kStages * 8;
  const uint32_t rank = kCluster == 1 ? 0 : hopper::cluster_rank();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kStages; ++i) {
      hopper::barrier_init(full + i * 8, 1);
      hopper::barrier_init(empty + i * 8, kWarpgroups * kCluster);
    }
    hopper::barrier_init_done();
  }
  if (kCluster == 1) {
    __syncthreads();
  } else {
    hopper::cluster_sync();
  }
  const WideOrder order{tiles_for(args.n) / (kWarpgroups * kCluster), (args.rows + kTokens - 1) / kTokens};
  const int warpgroup = static_cast<int>(threadIdx.x / 128);
  if (warpgroup == kWarpgroups) {
    if constexpr (kWarpgroups == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (threadIdx.x % 128 == 0) {
      wide_fill<kWarpgroups, kTokens, kCluster>(args, order, ring, full, empty, rank);
    }
  } else {
    if constexpr (kWarpgroups == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    wide_multiply<kWarpgroups, kTokens, kCluster>(args, order, ring, full, empty, rank, warpgroup);
  }
  // No block ends while another of its cluster may still arrive at its barriers or copy to it.
  if (kCluster != 1) {
    __syncwarp();
    hopper::cluster_sync();
  }
}

}  // namespace kvasir::ops::gpu
