// The GPU that tests of the executor run on: the fake one, or, in a program that is linked for a device,
// that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "exec/gpu/gpu.h"

namespace kvasir::test {

// When work that is queued on the fake GPU runs. A device has its own pace.
enum class FakeGpuPace : uint8_t {
  kEarly,   // at once, as far as gates let it
  kLate,    // not before something waits for it
  kRandom,  // some of it at each call
};

std::unique_ptr<Gpu> make_test_gpu(FakeGpuPace pace, uint64_t seed);
// Where the bytes of the fake GPU's memory really lie, for a link that the test drives. Null on a device.
std::byte* shadow_of(Gpu& gpu, std::byte* device);

}  // namespace kvasir::test
