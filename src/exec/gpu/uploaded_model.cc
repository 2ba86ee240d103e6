#include "exec/gpu/uploaded_model.h"

#include <algorithm>
#include <cstring>

#include "base/units.h"

namespace kvasir {

Result<std::unique_ptr<UploadedModel>> UploadedModel::make(const ModelFile& file, uint32_t max_positions,
                                                           Gpu& gpu) {
  const ModelSpec& spec = file.spec();
  if (spec.is_latent()) {
    return error(ErrorCode::kUnsupported,
                 "models with latent attention do not run on a GPU yet; serve it with --device cpu");
  }
  if (spec.is_recurrent() || spec.output_gate) {
    return error(ErrorCode::kUnsupported,
                 "models with recurrent layers do not run on a GPU yet; serve it with --device cpu");
  }
  if (spec.head_dim % 16 != 0 || spec.head_dim > 256) {
    return error(ErrorCode::kUnsupported,
                 "heads of {} values do not run on a GPU: multiples of 16 up to 256 do", spec.head_dim);
  }
  if (spec.has_experts() || spec.sinks) {
    return error(ErrorCode::kUnsupported, "{} do not run on a GPU yet; serve it with --device cpu",
                 spec.has_experts() ? "mixtures of experts" : "models with attention sinks");
  }
  if (spec.has_other_heads() || spec.v_norm) {
    return error(
        ErrorCode::kUnsupported,
        "models whose layers have heads of two sizes, or norms of V, do not run on a GPU yet; serve it "
        "with --device cpu");
  }
  if (spec.parallel) {
    return error(ErrorCode::kUnsupported,
                 "models with attention and feed-forward side by side do not run on a GPU yet; serve it with "
                 "--device cpu");
  }
  auto made = std::unique_ptr<UploadedModel>(new UploadedModel(gpu));
  GpuBuffer pinned(gpu, GpuBuffer::Kind::kPinned);
  KV_RETURN_IF_ERROR(pinned.reserve(16 * kMiB));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<GpuStream> stream, gpu.make_stream());
  Status status;
  made->model_ = GpuModel::make(file, max_positions, [&](const void* data, size_t bytes) -> const void* {
    if (!status.ok()) return nullptr;
    auto to = made->upload(data, bytes, pinned, *stream);
    if (!to.ok()) status = to.status();
    return to.ok() ? *to : nullptr;
  });
  if (!status.ok()) return status;
  return made;
}

Result<const void*> UploadedModel::upload(const void* data, size_t bytes, GpuBuffer& pinned,
                                          GpuStream& stream) {
  pieces_.push_back(std::make_unique<GpuBuffer>(gpu_, GpuBuffer::Kind::kDevice));
  KV_RETURN_IF_ERROR(pieces_.back()->reserve(bytes));
  std::byte* const to = pieces_.back()->data();
  bytes_ += bytes;
  for (size_t at = 0; at < bytes; at += pinned.bytes()) {
    const size_t count = std::min<size_t>(bytes - at, pinned.bytes());
    std::memcpy(pinned.data(), static_cast<const std::byte*>(data) + at, count);
    const GpuCopy copy = {to + at, pinned.data(), count};
    stream.copy({&copy, 1});
    KV_RETURN_IF_ERROR(stream.wait());
  }
  return static_cast<const void*>(to);
}

}  // namespace kvasir
