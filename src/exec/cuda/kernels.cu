// The kernels of ops/gpu, compiled for sm_90a, and their launches.
#include <cuda_runtime.h>

#include "exec/cuda/launch.h"
#include "ops/gpu/kernels/choose.h"

namespace kvasir::cuda {
namespace {

// So many blocks shall fit into a multiprocessor at once.
template <typename Kernel>
constexpr int blocks_of() {
  if constexpr (requires { Kernel::kBlocks; }) return Kernel::kBlocks;
  return 1;
}

template <typename Kernel, typename Args>
__global__ void __launch_bounds__(Kernel::kThreads, blocks_of<Kernel>())
    run_kernel(const __grid_constant__ Args args) {
  // What is queued next may come into place, and what was queued before must have ended.
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  Kernel::run(args);
}

template <typename Args>
const char* launch_chosen(const Args& args, Stream stream) {
  const cudaError_t error = ops::gpu::choose(args, [&](auto kernel) {
    using Kernel = decltype(kernel);
    const ops::gpu::Shape shape = Kernel::shape(args);
    if (shape.grid_x == 0 || shape.grid_y == 0) return cudaSuccess;
    constexpr int kAlwaysAllowed = 48 << 10;
    if (shape.shared_bytes > kAlwaysAllowed) {
      const cudaError_t refused = cudaFuncSetAttribute(
          run_kernel<Kernel, Args>, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
      if (refused != cudaSuccess) return refused;
    }
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(shape.grid_x, shape.grid_y);
    config.blockDim = dim3(shape.threads);
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, run_kernel<Kernel, Args>, args);
  });
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* launch(const ops::gpu::EmbedArgs& args, Stream stream) {
  return launch_chosen(args, stream);
}
const char* launch(const ops::gpu::NormRowsArgs& args, Stream stream) {
  return launch_chosen(args, stream);
}
const char* launch(const ops::gpu::GemmArgs& args, Stream stream) {
  return launch_chosen(args, stream);
}
const char* launch(const ops::gpu::FinishQkvArgs& args, Stream stream) {
  return launch_chosen(args, stream);
}
const char* launch(const ops::gpu::CopyXArgs& args, Stream stream) {
  return launch_chosen(args, stream);
}
const char* launch(const ops::gpu::FinishKvArgs& args, Stream stream) {
  return launch_chosen(args, stream);
}
const char* launch(const ops::gpu::LeafArgs& args, Stream stream) {
  ops::gpu::LeafArgs all = args;
  int device = 0;
  if (all.most_blocks == 0 && cudaGetDevice(&device) == cudaSuccess) {
    cudaDeviceGetAttribute(&all.most_blocks, cudaDevAttrMultiProcessorCount, device);
  }
  return launch_chosen(all, stream);
}
const char* launch(const ops::gpu::MergeArgs& args, Stream stream) {
  return launch_chosen(args, stream);
}
const char* launch(const ops::gpu::ActivateArgs& args, Stream stream) {
  return launch_chosen(args, stream);
}
const char* launch(const ops::gpu::AddBranchArgs& args, Stream stream) {
  return launch_chosen(args, stream);
}
const char* launch(const ops::gpu::DrawArgs& args, Stream stream) {
  return launch_chosen(args, stream);
}

}  // namespace kvasir::cuda
