// Launches of matrix products on the device: each queues one kernel on a stream of the current device.
// Thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "ops/gpu/kernel_args.h"

namespace kvasir::cuda {

// A tile of the product of many rows: 64 or 128 features by `tokens`, `cluster` blocks sharing the tokens.
struct WideTileShape {
  int features;
  int tokens;
  int cluster;
};

// All that there are.
const std::vector<WideTileShape>& wide_tiles();

// Whether `tile` can compute these: it needs features, up to the next multiple of 64, in multiples of its own
// times the cluster.
bool fits(const WideTileShape& tile, const ops::gpu::GemmArgs& args);

// The tile that should be fastest. Any gives the same bits.
WideTileShape choose_tile(const ops::gpu::GemmArgs& args, int multiprocessors);

// Rows up to 64. overlaps: it may begin before what is queued before it has ended, which then must not write
// weights. Up to 32 rows it does; it takes half of each multiprocessor's shared memory, so that there is room
// to.
cudaError_t gemm_stream(const ops::gpu::GemmArgs& args, int multiprocessors, bool overlaps,
                        cudaStream_t stream);

// Any rows. REQUIRES: fits(tile, args).
cudaError_t gemm_wide(const ops::gpu::GemmArgs& args, const WideTileShape& tile, int multiprocessors,
                      cudaStream_t stream);

// The kernel of few rows, or a tile of that of many; for few rows, how many rows it takes and how many warps
// share them.
struct ProductKernel {
  int rows;   // 0: it is of many rows
  int parts;  // of `rows`
  WideTileShape wide;
};
// All that gemm() may choose.
const std::vector<ProductKernel>& product_kernels();

// Features of which blocks of a kernel of few rows take so many slices at a time. Its ring depends on that.
struct StreamCase {
  int slices;
  int features;
};
// Each number of slices with which gemm() may choose the kernel.
std::vector<StreamCase> stream_cases(const ProductKernel& kernel, int multiprocessors);

// The fastest of these for any rows, or the one that GemmArgs::tile names, counted from 1.
// cudaErrorInvalidValue: that cannot compute them.
cudaError_t gemm(const ops::gpu::GemmArgs& args, int multiprocessors, bool overlaps, cudaStream_t stream);

}  // namespace kvasir::cuda
