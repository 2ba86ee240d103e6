// Which kernel, with which tile, ring and grid.
#include <algorithm>

#include "exec/cuda/gemm.h"
#include "ops/gpu/kernels/gemm_stream.h"
#include "ops/gpu/kernels/gemm_wide.h"

namespace kvasir::cuda {
namespace {

using ops::gpu::GemmArgs;
using ops::gpu::kStreamMultipliers;

constexpr int kMostStreamRows = 64;
// Above, a block has no room beside another.
constexpr int kMostOverlappingRows = 32;
constexpr int kSharedBytes = 220 * 1024;
constexpr int kHalfSharedBytes = 108 * 1024;

struct Shape {
  int grid;
  int threads;
  int shared_bytes;
  int cluster = 1;
  bool overlaps = false;
};

template <typename Kernel, typename... Arguments>
cudaError_t launch(Kernel* kernel, const Shape& shape, cudaStream_t stream, const Arguments&... arguments) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (shape.overlaps) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.grid));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// What all kernels of few rows share.
struct StreamCall {
  const GemmArgs& args;
  int grid;
  int slices;
  bool overlaps;
  cudaStream_t stream;
};

template <int kRows, int kParts>
cudaError_t stream_with(const StreamCall& call) {
  const int stage_bytes = ops::gpu::stream_stage_bytes<kRows>(call.slices) + 16;
  const bool overlaps = call.overlaps && kRows <= kMostOverlappingRows;
  const int room = (overlaps ? kHalfSharedBytes : kSharedBytes) - 1024;
  const int stages = std::clamp(room / stage_bytes, 3, 24);
  return launch(ops::gpu::gemm_stream_kernel<kRows, kParts>,
                {call.grid, (call.slices * kParts + 1) * 32, stages * stage_bytes + 1024, 1, overlaps},
                call.stream, call.args, ops::gpu::StreamPlan{call.slices, stages});
}

// Few slices leave most of a multiprocessor idle: then several warps share the rows of a slice. parts: so
// many; 0: as many as there is room for.
template <int kRows>
cudaError_t stream_rows(const GemmArgs& args, int multiprocessors, bool overlaps, cudaStream_t stream,
                        int parts) {
  const int all = ops::tiles_for(args.n) * (ops::kTileRows / ops::gpu::kSliceFeatures);
  const int grid = std::min(multiprocessors, all);
  const int share = (all + grid - 1) / grid;
  const int turns = (share + kStreamMultipliers - 1) / kStreamMultipliers;
  const StreamCall call{args, grid, (share + turns - 1) / turns, overlaps, stream};
  const auto takes = [&](int count) {
    return call.slices * count <= kStreamMultipliers && (parts == 0 || parts == count);
  };
  if constexpr (kRows >= 32) {
    if (takes(4)) return stream_with<kRows, 4>(call);
  }
  if constexpr (kRows >= 16) {
    if (takes(2)) return stream_with<kRows, 2>(call);
  }
  return parts <= 1 ? stream_with<kRows, 1>(call) : cudaErrorInvalidValue;
}

template <int kWarpgroups, int kTokens, int kCluster>
cudaError_t wide_with(const GemmArgs& args, int multiprocessors, cudaStream_t stream) {
  using Tile = ops::gpu::WideTile<kWarpgroups, kTokens>;
  const int tiles = ops::tiles_for(args.n) / kWarpgroups * ((args.rows + kTokens - 1) / kTokens);
  // At least one cluster: fits() has tiles for it.
  const int grid = std::min(std::max(1, multiprocessors / kCluster) * kCluster, tiles);
  return launch(ops::gpu::gemm_wide_kernel<kWarpgroups, kTokens, kCluster>,
                {grid, Tile::kThreads, Tile::kSharedBytes, kCluster}, stream, args);
}

}  // namespace

const std::vector<WideTileShape>& wide_tiles() {
  static const std::vector<WideTileShape> tiles = {
      {128, 256, 2}, {128, 256, 1}, {128, 128, 1}, {64, 128, 1}, {64, 64, 1}};
  return tiles;
}

bool fits(const WideTileShape& tile, const GemmArgs& args) {
  return ops::tiles_for(args.n) % (tile.features / ops::kTileRows * tile.cluster) == 0;
}

WideTileShape choose_tile(const GemmArgs& args, int multiprocessors) {
  // Nanoseconds of one tile for 64 of k, and of starting in step, as measured on an H200.
  const auto cost = [&](const WideTileShape& tile) {
    const int per_step = tile.tokens == 256     ? (tile.cluster == 2 ? 695 : 725)
                         : tile.features == 128 ? 372
                         : tile.tokens == 128   ? 255
                                                : 214;
    const int tiles = ops::tiles_for(args.n) * ops::kTileRows / tile.features *
                      ((args.rows + tile.tokens - 1) / tile.tokens);
    const int blocks = std::max(1, multiprocessors / tile.cluster * tile.cluster);
    return int64_t{(tiles + blocks - 1) / blocks} * ops::tiles_for(args.k) * per_step +
           (tile.cluster == 2 ? 3000 : 0);
  };
  const WideTileShape* best = nullptr;
  for (const WideTileShape& tile : wide_tiles()) {
    if (fits(tile, args) && (best == nullptr || cost(tile) < cost(*best))) best = &tile;
  }
  return *best;  // the last fits any
}

namespace {

// By the kernel for `rows` rows.
cudaError_t stream_of(int rows, int parts, const GemmArgs& args, int multiprocessors, bool overlaps,
                      cudaStream_t stream) {
  if (rows <= 8) return stream_rows<8>(args, multiprocessors, overlaps, stream, parts);
  if (rows <= 16) return stream_rows<16>(args, multiprocessors, overlaps, stream, parts);
  if (rows <= 32) return stream_rows<32>(args, multiprocessors, overlaps, stream, parts);
  if (rows <= kMostStreamRows) return stream_rows<64>(args, multiprocessors, overlaps, stream, parts);
  return cudaErrorInvalidValue;
}

}  // namespace

const std::vector<ProductKernel>& product_kernels() {
  static const std::vector<ProductKernel> kernels = [] {
    std::vector<ProductKernel> all = {{8, 1, {}},  {16, 1, {}}, {16, 2, {}}, {32, 1, {}}, {32, 2, {}},
                                      {32, 4, {}}, {64, 1, {}}, {64, 2, {}}, {64, 4, {}}};
    for (const WideTileShape& tile : wide_tiles()) all.push_back({0, 0, tile});
    return all;
  }();
  return kernels;
}

std::vector<StreamCase> stream_cases(const ProductKernel& kernel, int multiprocessors) {
  constexpr int kSlicesOfTile = ops::kTileRows / ops::gpu::kSliceFeatures;
  // Where more warps can share the rows they do, as stream_rows() has it.
  const int most_parts = kernel.rows >= 32 ? 4 : kernel.rows >= 16 ? 2 : 1;
  const int fewest = kernel.parts == most_parts ? 1 : kStreamMultipliers / (2 * kernel.parts) + 1;
  const int most = kStreamMultipliers / kernel.parts;
  std::vector<StreamCase> cases;
  // share: of a block. One more than the warps can take is two turns.
  for (int share = fewest; share <= most + (kernel.parts == 1 ? 1 : 0); ++share) {
    const int tiles = (share - 1) * multiprocessors / kSlicesOfTile + 1;  // the fewest that have it
    cases.push_back({share <= most ? share : (share + 1) / 2, tiles * ops::kTileRows});
  }
  return cases;
}

cudaError_t gemm_stream(const GemmArgs& args, int multiprocessors, bool overlaps, cudaStream_t stream) {
  return stream_of(args.rows, 0, args, multiprocessors, overlaps, stream);
}

cudaError_t gemm_wide(const GemmArgs& args, const WideTileShape& tile, int multiprocessors,
                      cudaStream_t stream) {
  const auto is = [&](int features, int tokens, int cluster) {
    return tile.features == features && tile.tokens == tokens && tile.cluster == cluster;
  };
  if (is(128, 256, 2)) return wide_with<2, 256, 2>(args, multiprocessors, stream);
  if (is(128, 256, 1)) return wide_with<2, 256, 1>(args, multiprocessors, stream);
  if (is(128, 128, 1)) return wide_with<2, 128, 1>(args, multiprocessors, stream);
  if (is(64, 128, 1)) return wide_with<1, 128, 1>(args, multiprocessors, stream);
  if (is(64, 64, 1)) return wide_with<1, 64, 1>(args, multiprocessors, stream);
  return cudaErrorInvalidValue;
}

cudaError_t gemm(const GemmArgs& args, int multiprocessors, bool overlaps, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  if (args.tile > 0) {
    const ProductKernel& kernel = product_kernels().at(static_cast<size_t>(args.tile) - 1);
    if (kernel.rows == 0) {
      if (!fits(kernel.wide, args)) return cudaErrorInvalidValue;
      return gemm_wide(args, kernel.wide, multiprocessors, stream);
    }
    if (args.rows > kernel.rows) return cudaErrorInvalidValue;
    return stream_of(kernel.rows, kernel.parts, args, multiprocessors, overlaps, stream);
  }
  if (args.rows <= kMostStreamRows) return gemm_stream(args, multiprocessors, overlaps, stream);
  return gemm_wide(args, choose_tile(args, multiprocessors), multiprocessors, stream);
}

}  // namespace kvasir::cuda
