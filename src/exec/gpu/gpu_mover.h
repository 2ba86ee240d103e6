// Copies between a GPU's memory and pinned memory, beside what the GPU computes.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "contract/mover.h"
#include "exec/gpu/gpu.h"
#include "exec/gpu/gpu_failure.h"

namespace kvasir {

// Calls at the same time have streams of their own. A stream that has failed fails all later calls that get
// it, since an error of the device stays.
class GpuMover final : public Mover {
 public:
  // They outlive the mover. failure: told of the first error of a stream; may be null.
  explicit GpuMover(Gpu& gpu, GpuFailure* failure = nullptr) : gpu_(gpu), failure_(failure) {}

  // For so many calls at the same time, while no gate is closed: a stream that a call does not find is made
  // then, which may wait for all that is queued.
  Status make_streams(size_t count);
  Status move(std::span<const MovedRun> runs) override;

 private:
  Result<std::unique_ptr<GpuStream>> take();

  Gpu& gpu_;
  GpuFailure* const failure_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<GpuStream>> idle_;
};

}  // namespace kvasir
