// A GPU: weights and device tier in its memory, the host tier in pinned memory.
#include <algorithm>
#include <utility>

#include "base/units.h"
#include "cache/tiers/disk_file.h"
#include "exec/gpu/gpu_executor.h"
#include "exec/gpu/gpu_mover.h"
#include "exec/gpu/uploaded_model.h"
#include "runtime/engine_options.h"
#include "runtime/serving_device.h"
#include "runtime/tier_sizes.h"

namespace kvasir {
namespace {

constexpr int kDepth = 2;  // steps in flight
// A part of the GPU's memory that is left to what grows while it serves: block tables, and images of steps.
constexpr uint64_t kPartThatGrows = 128;  // one in so many

// What was not to be had when serving starts, and what to do about it. memory_flag: what says how much of the
// GPU's memory is used.
Status refused(const std::string& what, const Status& why, const std::string& memory_flag) {
  if (why.code() != ErrorCode::kExhausted) {
    return error(why.code(), "--device cuda: {}: {}; see what nvidia-smi says, or serve with --device cpu",
                 what, why.message());
  }
  return error(why.code(), "{}: {}: {}; give less, or a smaller --max-model-len or --max-num-batched-tokens",
               memory_flag, what, why.message());
}

class GpuDevice final : public ServingDevice {
 public:
  explicit GpuDevice(std::unique_ptr<Gpu> gpu)
      : gpu_(std::move(gpu)),
        device_(*gpu_, GpuBuffer::Kind::kDevice),
        host_(*gpu_, GpuBuffer::Kind::kPinned),
        disk_buffers_(*gpu_, GpuBuffer::Kind::kPinned),
        mover_(*gpu_, &failure_) {}

  Status load_weights(const RuntimeOptions& options, const ModelFile& model, EngineOptions& engine) override;
  Status size(const RuntimeOptions& options, EngineOptions& engine) override;
  Status map_tiers(const CacheOptions& cache) override;
  std::span<std::byte> device_tier() const override { return {device_.data(), device_.bytes()}; }
  std::span<std::byte> host_tier() const override { return {host_.data(), host_.bytes()}; }
  Mover* mover() override { return &mover_; }
  Result<std::span<std::byte>> disk_buffers(uint64_t bytes) override;
  Result<std::unique_ptr<Executor>> make_executor(const RuntimeOptions& options, const EngineOptions& engine,
                                                  const Clock& clock, Link* link, PeerMemory* peers) override;

  std::string failure() const override { return failure_.words(); }

  std::string cost_place(const RuntimeOptions&) const override {
    return fmt::format("gpu='{}'", gpu_->name());
  }

  std::string kernels_text(const RuntimeOptions&) const override {
    return fmt::format("on the GPU {}", gpu_->name());
  }
  std::string weights_text() const override {
    return fmt::format("weights {} (bf16) of the GPU's {}", format_bytes(uploaded_->bytes()),
                       format_bytes(total_bytes_));
  }
  uint64_t activation_bytes() const override { return activation_bytes_; }

 private:
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<UploadedModel> uploaded_;
  GpuBuffer device_;
  GpuBuffer host_;
  GpuBuffer disk_buffers_;
  GpuFailure failure_;
  GpuMover mover_;
  uint64_t total_bytes_ = 0;
  std::string memory_flag_;  // with its value; what takes the most of the GPU's memory,
  std::string pinned_flag_;  // and of pinned memory
  uint64_t activation_bytes_ = 0;
};

Status GpuDevice::load_weights(const RuntimeOptions& options, const ModelFile& model, EngineOptions& engine) {
  auto uploaded = UploadedModel::make(model, static_cast<uint32_t>(model.spec().context_length), *gpu_);
  if (!uploaded.ok()) {
    const Status& why = uploaded.status();
    const bool full = why.code() == ErrorCode::kExhausted;
    return error(why.code(), "--device cuda: {}: {}{}{}", options.model_path,
                 full ? "the GPU has no room for its weights: " : "", why.message(),
                 full ? "; choose a smaller model, or serve it with --device cpu" : "");
  }
  uploaded_ = *std::move(uploaded);
  engine.cache.numerics_id = gpu_numerics_id();
  engine.scratch_tokens = batched_tokens(options);  // for which make_executor() reserves memory
  pinned_flag_ =
      options.kv_offloading_disk_bytes > 0
          ? fmt::format("--kv-offloading-disk-size {}", format_bytes(options.kv_offloading_disk_bytes))
          : fmt::format("--max-num-batched-tokens {}", engine.scratch_tokens);
  return {};
}

Status GpuDevice::size(const RuntimeOptions& options, EngineOptions& engine) {
  const ModelSpec& spec = uploaded_->model().spec;
  const auto context = static_cast<uint32_t>(spec.context_length);
  const uint32_t longest = options.max_model_len > 0 ? std::min(options.max_model_len, context) : context;
  const uint64_t activations = GpuExecutor::activation_bytes(spec, {engine.scratch_tokens, longest});
  const double part = options.gpu_memory_utilization.value_or(kDefaultGpuShare);
  memory_flag_ = options.kv_cache_memory_bytes > 0
                     ? fmt::format("--kv-cache-memory-bytes {}", format_bytes(options.kv_cache_memory_bytes))
                     : fmt::format("--gpu-memory-utilization {}", part);
  const Result<Gpu::Memory> asked = gpu_->memory();
  if (!asked.ok()) return refused("it cannot be asked how much memory it has", asked.status(), memory_flag_);
  const Gpu::Memory memory = *asked;
  total_bytes_ = memory.total_bytes;
  const auto share = static_cast<uint64_t>(part * static_cast<double>(memory.total_bytes));
  const uint64_t taken = memory.total_bytes - memory.free_bytes + activations;
  GpuRoom room;
  room.most_bytes =
      memory.free_bytes - std::min(memory.free_bytes, activations + memory.total_bytes / kPartThatGrows);
  room.usual_bytes = std::min(room.most_bytes, share - std::min(share, taken));
  return size_tiers(options, context, available_memory(), engine, room);
}

Status GpuDevice::map_tiers(const CacheOptions& cache) {
  const uint64_t bytes = cache.device_bytes + cache.stage_bytes;
  if (cache.host_bytes > 0) {
    pinned_flag_ = fmt::format("--kv-offloading-size {}", format_bytes(cache.host_bytes));
  }
  Status status = device_.reserve(bytes);
  if (!status.ok()) {
    return refused(fmt::format("no room for {} of keys and values", format_bytes(bytes)), status,
                   memory_flag_);
  }
  if (cache.host_bytes > 0) {
    status = host_.reserve(cache.host_bytes);
    if (!status.ok()) return error(status.code(), "{}: {}; give less", pinned_flag_, status.message());
  }
  if (cache.host_bytes + cache.disk_bytes == 0) return {};
  // The link copies in both directions at once, and to and from the disk's buffers. The executor has one
  // more.
  static_assert(2 * kMoverUnits + 2 <= kMostStreams);
  status = mover_.make_streams(2 * kMoverUnits + (cache.disk_bytes > 0 ? 1 : 0));
  return status.ok() ? status : refused("no streams for copies to other tiers", status, memory_flag_);
}

Result<std::span<std::byte>> GpuDevice::disk_buffers(uint64_t bytes) {
  const Status status = disk_buffers_.reserve(bytes + kDiskAlign);
  if (!status.ok()) {
    return error(status.code(),
                 "{}: {} of pinned memory for copies to and from the disk: {}; give less, a smaller "
                 "--block-size or no disk tier",
                 pinned_flag_, format_bytes(bytes), status.message());
  }
  std::byte* const at = disk_buffers_.data();
  const auto past = reinterpret_cast<uintptr_t>(at) % kDiskAlign;
  return std::span(at + (past == 0 ? 0 : kDiskAlign - past), bytes);
}

Result<std::unique_ptr<Executor>> GpuDevice::make_executor(const RuntimeOptions& options,
                                                           const EngineOptions& engine, const Clock& clock,
                                                           Link* link, PeerMemory*) {
  auto ready =
      GpuExecutor::make(*gpu_, uploaded_->model(), engine.cache.geometry, device_.data(), clock, link,
                        {.depth = kDepth, .graphs = !options.enforce_eager, .failure = &failure_});
  if (!ready.ok()) return refused("no executor", ready.status(), pinned_flag_);
  std::unique_ptr<GpuExecutor> made = *std::move(ready);
  Status reserved = made->reserve({engine.scratch_tokens, engine.max_model_len});
  if (!reserved.ok()) return refused("no room for activations", reserved, memory_flag_);
  reserved = made->reserve_pinned({engine.scratch_tokens, engine.max_model_len});
  if (!reserved.ok()) return refused("no pinned memory for hidden rows", reserved, pinned_flag_);
  activation_bytes_ =
      GpuExecutor::activation_bytes(uploaded_->model().spec, {engine.scratch_tokens, engine.max_model_len});
  if (options.tap) made->set_tap(options.tap);
  return std::unique_ptr<Executor>(std::move(made));
}

}  // namespace

std::unique_ptr<ServingDevice> make_gpu_device(std::unique_ptr<Gpu> gpu) {
  return std::make_unique<GpuDevice>(std::move(gpu));
}

}  // namespace kvasir
