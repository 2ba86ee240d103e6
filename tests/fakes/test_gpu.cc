#include "fakes/test_gpu.h"

#include "fakes/fake_gpu.h"

namespace kvasir::test {

std::unique_ptr<Gpu> make_test_gpu(FakeGpuPace pace, uint64_t seed) {
  return std::make_unique<FakeGpu>(pace, seed);
}

std::byte* shadow_of(Gpu& gpu, std::byte* device) {
  return static_cast<FakeGpu&>(gpu).shadow(device);
}

}  // namespace kvasir::test
