// This machine's CPU, with the tiers in main memory.
#include <utility>

#include "base/units.h"
#include "exec/cpu/cpu_executor.h"
#include "exec/cpu/packed_model.h"
#include "ops/cpu/isa.h"
#include "runtime/cost_profile.h"
#include "runtime/engine_options.h"
#include "runtime/serving_device.h"
#include "runtime/tier_sizes.h"

namespace kvasir {
namespace {

class CpuDevice final : public ServingDevice {
 public:
  explicit CpuDevice(const Decoder::Options& decoder) : decoder_(decoder) {}

  Status load_weights(const RuntimeOptions& options, const ModelFile& model, EngineOptions& engine) override {
    context_ = static_cast<uint32_t>(model.spec().context_length);
    KV_ASSIGN_OR_RETURN(packed_, PackedModel::make(model, context_, compute_threads(options)));
    engine.cache.numerics_id = numerics_of(*packed_, decoder_.activation, decoder_.kv_type);
    return {};
  }
  Status size(const RuntimeOptions& options, EngineOptions& engine) override {
    return size_tiers(options, context_, available_memory(), engine);
  }
  Status map_tiers(const CacheOptions& cache) override {
    KV_ASSIGN_OR_RETURN(device_, Arena::map(cache.device_bytes + cache.stage_bytes,
                                            "the KV cache (--kv-cache-memory-bytes)"));
    if (cache.host_bytes > 0) {
      KV_ASSIGN_OR_RETURN(host_, Arena::map(cache.host_bytes, "the host tier (--kv-offloading-size)"));
    }
    return {};
  }
  std::span<std::byte> device_tier() const override { return {device_.data(), device_.size()}; }
  std::span<std::byte> host_tier() const override { return {host_.data(), host_.size()}; }

  Result<std::unique_ptr<Executor>> make_executor(const RuntimeOptions& options, const EngineOptions& engine,
                                                  const Clock& clock, Link* link,
                                                  PeerMemory* peers) override {
    decoder_.peers = peers;
    auto made = std::make_unique<CpuExecutor>(
        *packed_, ops::kernels_for(ops::detect_isa()), engine.cache.geometry, decoder_, device_.data(),
        compute_threads(options), clock, cpu_shares(options).team, link);
    KV_RETURN_IF_ERROR(made->reserve(batched_tokens(options)));
    if (options.tap) made->set_tap(options.tap);
    executor_ = made.get();
    return std::unique_ptr<Executor>(std::move(made));
  }

  std::string cost_place(const RuntimeOptions& options) const override { return cpu_cost_place(options); }

  std::string kernels_text(const RuntimeOptions& options) const override {
    return fmt::format("{} kernels{}, {}{}", ops::isa_name(ops::detect_isa()),
                       ops::has_bf16_dot() ? " with bf16 dot products" : "",
                       count_of(static_cast<uint64_t>(compute_threads(options)), "thread"),
                       cpu_shares(options).team.empty() ? "" : " (pinned)");
  }
  std::string weights_text() const override {
    return fmt::format("weights {} (packed)", format_bytes(packed_->bytes()));
  }
  uint64_t activation_bytes() const override { return executor_->scratch_bytes(); }

 private:
  Decoder::Options decoder_;
  uint32_t context_ = 0;
  std::unique_ptr<PackedModel> packed_;
  Arena device_;
  Arena host_;
  const CpuExecutor* executor_ = nullptr;  // the caller's
};

}  // namespace

std::unique_ptr<ServingDevice> make_cpu_device(const Decoder::Options& decoder) {
  return std::make_unique<CpuDevice>(decoder);
}

}  // namespace kvasir
