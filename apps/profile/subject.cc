#include "apps/profile/subject.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "apps/profile/step_machine.h"
#include "base/units.h"
#include "contract/mover.h"
#include "runtime/device_limits.h"
#include "runtime/engine_options.h"
#include "runtime/open_cuda_gpu.h"
#include "runtime/tier_sizes.h"

namespace kvasir {
namespace {

// Untouched memory would be the kernel's one page of zeros, which is always in the CPU's cache.
constexpr int kFill = 0x3C;
constexpr uint64_t kLinkMemory = 64 * kMiB;  // of each tier that a link is measured between

// Sizes of the profile's own tiers, of the device's memory that serve would use.
Status size(Subject& s, uint64_t most_cpu_memory) {
  RuntimeOptions alone = s.options;
  alone.kv_offloading_bytes = alone.kv_offloading_disk_bytes = alone.stage_ring_bytes = 0;
  alone.kv_offloading_dir.clear();
  alone.max_model_len = 0;
  if (!is_on_gpu(alone)) alone.kv_cache_memory_bytes = std::min(most_cpu_memory, available_memory() / 4);
  KV_RETURN_IF_ERROR(s.device->size(alone, s.engine));
  CacheOptions& cache = s.engine.cache;
  const uint64_t wanted = std::max(StepMachine::most_bytes(cache.geometry), kLinkMemory);
  cache.device_bytes = std::min(cache.device_bytes + cache.stage_bytes, wanted);
  cache.stage_bytes = 0;
  // What fills a GPU's memory lies in that of the host.
  cache.host_bytes = s.has_slower_tier() || s.device->mover() != nullptr ? kLinkMemory : 0;
  cache.disk_bytes = s.options.kv_offloading_disk_bytes;
  return {};
}

// What the device says names flags of serve that no one gave here.
Status map_tiers(const Subject& s) {
  const CacheOptions& cache = s.engine.cache;
  Status status = s.device->map_tiers(cache);
  const bool has_device = s.device->device_tier().size() >= cache.device_bytes;
  const bool has_host = s.device->host_tier().size() >= cache.host_bytes;
  if (status.ok() || (has_device && has_host)) return status;
  const bool on_gpu = is_on_gpu(s.options);
  return error(status.code(), "no {} of {} for what is measured",
               format_bytes(has_device ? cache.host_bytes : cache.device_bytes),
               !on_gpu      ? "memory"
               : has_device ? "pinned memory"
                            : "the GPU's memory");
}

Status fill(ServingDevice& device) {
  const std::span<std::byte> host = device.host_tier(), tier = device.device_tier();
  if (!host.empty()) std::memset(host.data(), kFill, host.size());
  Mover* const mover = device.mover();
  if (mover == nullptr) {
    std::memset(tier.data(), kFill, tier.size());
    return {};
  }
  for (size_t at = 0; at < tier.size(); at += host.size()) {
    const MovedRun run = {tier.data() + at, host.data(), std::min(host.size(), tier.size() - at)};
    KV_RETURN_IF_ERROR(mover->move({&run, 1}));
  }
  return {};
}

}  // namespace

Result<Subject> open_subject(const RuntimeOptions& options, uint64_t most_cpu_memory) {
  KV_RETURN_IF_ERROR(check_limits(options));
  KV_RETURN_IF_ERROR(check_build(options));
  if (is_on_gpu(options)) prepare_cuda();
  Subject s;
  s.options = options;
  Decoder::Options decoder;
  KV_ASSIGN_OR_RETURN(decoder.kv_type, kv_type_from(options.kv_cache_dtype));
  KV_ASSIGN_OR_RETURN(decoder.activation, activation_from(options.activation_type));
  KV_ASSIGN_OR_RETURN(s.device, make_serving_device(options, decoder));
  KV_ASSIGN_OR_RETURN(s.file, open_model(options));
  KV_ASSIGN_OR_RETURN(s.layout, make_geometry(options, *s.file, decoder));
  s.engine = engine_options(options);
  s.engine.cache.geometry = with_x(s.layout, x_forms(options, *s.file, decoder).x_per_token_layer);
  KV_RETURN_IF_ERROR(s.device->load_weights(options, *s.file, s.engine));
  s.file->release_pages();
  s.here =
      cost_fingerprint(options, s.file->spec(), s.engine.cache.numerics_id, s.device->cost_place(options));
  KV_RETURN_IF_ERROR(size(s, most_cpu_memory));
  KV_RETURN_IF_ERROR(map_tiers(s));
  KV_RETURN_IF_ERROR(fill(*s.device));
  return s;
}

}  // namespace kvasir
