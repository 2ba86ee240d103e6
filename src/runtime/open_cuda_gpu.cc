// In builds with CUDA (KVASIR_WITH_CUDA).
#include "runtime/open_cuda_gpu.h"

#include "exec/cuda/cuda_gpu.h"

namespace kvasir {

Status check_cuda_build() {
  return {};
}

void prepare_cuda() {
  cuda::set_environment();
}

Result<std::unique_ptr<Gpu>> open_cuda_gpu() {
  return cuda::open_gpu();
}

}  // namespace kvasir
