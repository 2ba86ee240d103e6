// A model's weights in a GPU's memory.
#pragma once

#include <memory>
#include <vector>

#include "exec/gpu/gpu.h"
#include "exec/gpu/gpu_model.h"

namespace kvasir {

class UploadedModel {
 public:
  // The file is needed no longer; the GPU outlives what is made. max_positions: the longest sequence that
  // will be run, in tokens. kExhausted: the device has no room for the weights. kUnsupported: no kernel
  // takes heads of this size.
  static Result<std::unique_ptr<UploadedModel>> make(const ModelFile& file, uint32_t max_positions, Gpu& gpu);
  UploadedModel(const UploadedModel&) = delete;
  UploadedModel& operator=(const UploadedModel&) = delete;

  const GpuModel& model() const { return model_; }
  uint64_t bytes() const { return bytes_; }

 private:
  explicit UploadedModel(Gpu& gpu) : gpu_(gpu) {}
  Result<const void*> upload(const void* data, size_t bytes, GpuBuffer& pinned, GpuStream& stream);

  Gpu& gpu_;
  std::vector<std::unique_ptr<GpuBuffer>> pieces_;
  uint64_t bytes_ = 0;
  GpuModel model_;
};

}  // namespace kvasir
