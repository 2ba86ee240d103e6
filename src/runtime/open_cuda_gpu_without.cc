// In builds without CUDA.
#include "runtime/open_cuda_gpu.h"

namespace kvasir {

Status check_cuda_build() {
  return error(ErrorCode::kUnsupported,
               "this kvasir was built without CUDA; where nvcc of CUDA 13 is, build one that has it: cmake "
               "--preset cuda && cmake --build build/cuda --target kvasir");
}

void prepare_cuda() {}

Result<std::unique_ptr<Gpu>> open_cuda_gpu() {
  return check_cuda_build();
}

}  // namespace kvasir
