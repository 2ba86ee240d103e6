// Runs kernels of ops/gpu without a GPU: every thread of a block is a fibre.
//
// Between barriers the threads of a block run in a random order, lanes of a warp too; blocks run one after
// the other, in a random order. fused_step is fused16. A copy writes garbage over its target when it starts,
// and its bytes as late as a thread can wait for them, or at a random earlier time. Shared memory is 0xFF at
// first (not a number), and is allocated to the byte, as the tests' buffers are, so AddressSanitizer sees
// what lies outside. A wrong use throws SimtError: threads that wait for each other for ever, lanes of a warp
// that do different things, misaligned copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

#include "ops/gpu/device.h"

namespace kvasir::simt {

struct SimtError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Launch {
  int grid_x = 1;
  int grid_y = 1;
  int threads = 32;  // a multiple of 32
  size_t shared_bytes = 0;
  uint64_t seed = 0;
};
// Runs `kernel` once for each thread of the grid.
void launch(const Launch& how, const std::function<void()>& kernel);

// How the machine itself is wrong, for tests that must find it.
struct Machine {
  ops::gpu::Fault fault = ops::gpu::Fault::kNone;
  int skipped_sync = -1;    // no thread waits at its sync_block of this number
  bool half_steps = false;  // a fused_step adds 8 products, and then the other 8
};
// Until it is destroyed.
class ScopedMachine {
 public:
  explicit ScopedMachine(const Machine& machine);
  ~ScopedMachine();
  ScopedMachine(const ScopedMachine&) = delete;
  ScopedMachine& operator=(const ScopedMachine&) = delete;
};
// How many sync_block a thread of the last launch passed, at most.
int syncs_of_last_launch();

}  // namespace kvasir::simt
