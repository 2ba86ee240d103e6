// The driver's stream memory operations, which the runtime does not have. Found at run time, so that a
// program without a driver starts.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace kvasir::cuda {

// Null: the driver has none.
struct MemoryOperations {
  using Function = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
  Function write = find("cuStreamWriteValue32");
  Function wait = find("cuStreamWaitValue32");

 private:
  static Function find(const char* name) {
    void* symbol = nullptr;
    cudaDriverEntryPointQueryResult found{};
    if (cudaGetDriverEntryPointByVersion(name, &symbol, 12000, cudaEnableDefault, &found) != cudaSuccess) {
      return nullptr;
    }
    return reinterpret_cast<Function>(symbol);
  }
};

}  // namespace kvasir::cuda
