#include "exec/gpu/gpu_mover.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/heap.h"
#include "base/log.h"

namespace kvasir {

Result<std::unique_ptr<GpuStream>> GpuMover::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<GpuStream> stream = std::move(idle_.back());
      idle_.pop_back();
      return stream;
    }
  }
  return gpu_.make_stream();
}

Status GpuMover::make_streams(size_t count) {
  const std::lock_guard lock(mutex_);
  while (idle_.size() < count) {
    KV_ASSIGN_OR_RETURN(std::unique_ptr<GpuStream> stream, gpu_.make_stream());
    idle_.push_back(std::move(stream));
  }
  return {};
}

Status GpuMover::move(std::span<const MovedRun> runs) {
  const WaitsForMemory patient;  // a link's thread has no caller that could be told
  KV_ASSIGN_OR_RETURN(std::unique_ptr<GpuStream> stream, take());
  std::array<GpuCopy, 16> copies;
  for (size_t first = 0; first < runs.size(); first += copies.size()) {
    const auto some = runs.subspan(first, std::min(copies.size(), runs.size() - first));
    for (size_t i = 0; i < some.size(); ++i) copies[i] = {some[i].to, some[i].from, some[i].bytes};
    stream->copy(std::span(copies).first(some.size()));
  }
  Status status = stream->wait();
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(stream));
  if (failure_ != nullptr && failure_->note(status)) {
    log_error("copies between the GPU and the host fail from now on: {}", status.message());
  }
  return status;
}

}  // namespace kvasir
