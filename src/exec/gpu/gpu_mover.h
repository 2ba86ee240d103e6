// Copies between a GPU's memory and pinned memory, beside what the GPU computes.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "contract/mover.h"
#include "exec/gpu/gpu.h"

namespace kvasir {

// Calls at the same time have streams of their own. A stream that has failed fails all later calls that get
// it, since an error of the device stays.
class GpuMover final : public Mover {
 public:
  // The GPU outlives the mover.
  explicit GpuMover(Gpu& gpu) : gpu_(gpu) {}

  Status move(std::span<const MovedRun> runs) override;

 private:
  Result<std::unique_ptr<GpuStream>> take();

  Gpu& gpu_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<GpuStream>> idle_;
};

}  // namespace kvasir
