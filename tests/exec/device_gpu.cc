// The GPU that gpu_bits_test runs on where it is linked for a device.
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "exec/cuda/cuda_gpu.h"
#include "fakes/test_gpu.h"

namespace kvasir::test {

std::unique_ptr<Gpu> make_test_gpu(FakeGpuPace, uint64_t) {
  auto gpu = cuda::open_gpu();
  if (!gpu.ok()) {
    std::fprintf(stderr, "%s\n", gpu.status().message().c_str());
    std::exit(1);
  }
  return std::move(gpu).value();
}

std::byte* shadow_of(Gpu&, std::byte*) {
  return nullptr;
}

}  // namespace kvasir::test
