#include "runtime/tier_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "base/units.h"
#include "cache/commit/stage_ring_size.h"
#include "cache/tiers/disk_file.h"
#include "runtime/engine_options.h"
#include "sched/registry.h"

namespace kvasir {
namespace {

// The device tier's default share of the memory that is left after the model and the host tier.
constexpr double kDefaultKvShare = 0.5;

// The most to borrow by default, as a multiple of the device tier; and the most cells that the bookkeeping
// takes.
constexpr uint64_t kDefaultBorrowed = 4;
constexpr uint64_t kMostBorrowedCells = uint64_t{1} << 22;

// The number in a file of the control group; nothing if there is no file or it says "max".
std::optional<uint64_t> cgroup_number(const char* file) {
  std::ifstream in(std::string("/sys/fs/cgroup/") + file);
  uint64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

// The flags that make room for longer requests, with their present values.
std::string memory_flags(const RuntimeOptions& options, bool on_gpu, const CacheOptions& cache) {
  const bool disk = cache.slower_tier() == Tier::kDisk && cache.disk_bytes > 0;
  const bool by_share = on_gpu && options.kv_cache_memory_bytes == 0;
  return fmt::format("{} and {} {}",
                     by_share ? fmt::format("--gpu-memory-utilization {}",
                                            options.gpu_memory_utilization.value_or(kDefaultGpuShare))
                              : fmt::format("--kv-cache-memory-bytes {}",
                                            format_bytes(cache.device_bytes + cache.stage_bytes)),
                     disk ? "--kv-offloading-disk-size" : "--kv-offloading-size",
                     format_bytes(cache.tier_bytes(cache.slower_tier())));
}

// The stage ring, of the device tier's bytes: as large as the option says, else as the policy and the tiers
// need.
Status size_stage_ring(const RuntimeOptions& options, uint32_t longest, uint64_t device,
                       CacheOptions& cache) {
  const CacheGeometry& g = cache.geometry;
  // Peers attend to the K and V that they hold, which therefore need no slots.
  const uint64_t slower = (cache.cells(cache.slower_tier()) - cache.borrowable_cells()) * g.kv_cell_bytes();
  const RingUse use = {.stages_by_choice = policy_traits(options.scheduling_policy).stages,
                       .asked_for_length = options.max_model_len > 0};
  cache.stage_bytes =
      std::max(stage_ring_bytes(g, device, slower, longest, use), projection_ring_bytes(g, device, longest));
  if (cache.borrowed_bytes > 0) {
    cache.stage_bytes = std::max(cache.stage_bytes, peers_ring_bytes(g, device, cache.own_host_cells()));
  }
  if (policy_traits(options.scheduling_policy).drops) {
    cache.stage_bytes = std::max(cache.stage_bytes, shared_ring_bytes(g, device));
  }
  if (options.stage_ring_bytes == 0) return {};
  const uint64_t slot = g.largest_piece_bytes();
  if (options.stage_ring_bytes < slot) {
    return error(ErrorCode::kInvalidArgument,
                 "--kv-stage-ring-size {}: one layer of a block takes {}; give more",
                 format_bytes(options.stage_ring_bytes), format_bytes(slot));
  }
  cache.stage_bytes = options.stage_ring_bytes / slot * slot;
  if (cache.stage_bytes + g.kv_block_bytes() > device) {
    return error(ErrorCode::kInvalidArgument,
                 "--kv-stage-ring-size {}: of --kv-cache-memory-bytes {} it leaves less than a block of {}",
                 format_bytes(options.stage_ring_bytes), format_bytes(device),
                 format_bytes(g.kv_block_bytes()));
  }
  return {};
}

// The device tier's bytes, stage ring included. available: of the memory that it is in.
Result<uint64_t> device_tier_bytes(const RuntimeOptions& options, uint64_t available, uint64_t host_bytes,
                                   const std::optional<GpuRoom>& gpu) {
  const uint64_t asked = options.kv_cache_memory_bytes;
  if (gpu) {
    if (asked <= gpu->most_bytes) return asked > 0 ? asked : gpu->usual_bytes;
    return error(
        ErrorCode::kExhausted,
        "--kv-cache-memory-bytes {}: beside weights, activations and what steps need, {} of the GPU's "
        "memory can be used; give at most that",
        format_bytes(asked), format_bytes(gpu->most_bytes));
  }
  if (asked > available) {
    return error(ErrorCode::kExhausted, "--kv-cache-memory-bytes {}: only {} of memory are available{}",
                 format_bytes(asked), format_bytes(available),
                 host_bytes > 0 ? " beside --kv-offloading-size" : "");
  }
  return asked > 0 ? asked : static_cast<uint64_t>(static_cast<double>(available) * kDefaultKvShare);
}

Status divide_memory(const RuntimeOptions& options, uint64_t context, uint64_t available,
                     const std::optional<GpuRoom>& gpu, CacheOptions& cache) {
  if (!gpu && options.kv_cache_memory_bytes == 0 && available == kUnknownMemory) {
    return error(
        ErrorCode::kInvalidArgument,
        "--kv-cache-memory-bytes: how much memory is free cannot be found out, since /proc/meminfo cannot "
        "be read; give the bytes for the KV cache, such as 4GiB");
  }
  cache.host_bytes = options.kv_offloading_bytes;
  cache.disk_bytes = options.kv_offloading_disk_bytes / kDiskAlign * kDiskAlign;
  if (cache.disk_bytes > 0 && cache.cells(Tier::kDisk) < cache.geometry.groups()) {
    return error(ErrorCode::kInvalidArgument,
                 "--kv-offloading-disk-size {}: one block of {} tokens takes {} on the disk; give more, or a "
                 "smaller --block-size",
                 format_bytes(cache.disk_bytes), cache.geometry.block_tokens,
                 format_bytes(cache.geometry.cell_stride(Form::kKv, Tier::kDisk) * cache.geometry.groups()));
  }
  if (cache.host_bytes > available) {
    return error(ErrorCode::kExhausted, "--kv-offloading-size {}: only {} of memory are available",
                 format_bytes(cache.host_bytes), format_bytes(available));
  }
  available -= cache.host_bytes;
  const uint64_t checksums = DiskFile::checksum_bytes(cache.disk_bytes);
  if (checksums > available) {
    return error(ErrorCode::kExhausted,
                 "--kv-offloading-disk-size {}: its checksums take {} of memory, and only {} are available",
                 format_bytes(cache.disk_bytes), format_bytes(checksums), format_bytes(available));
  }
  available -= checksums;
  KV_ASSIGN_OR_RETURN(const uint64_t device, device_tier_bytes(options, available, cache.host_bytes, gpu));
  const uint64_t cell = cache.geometry.kv_cell_bytes();
  const uint64_t wanted =
      options.cluster.borrow_bytes == UINT64_MAX ? kDefaultBorrowed * device : options.cluster.borrow_bytes;
  const uint64_t at_peers = std::min<uint64_t>(wanted / cell, kMostBorrowedCells);
  if (borrows(options)) cache.borrowed_bytes = at_peers * cell;
  if (attends_prefixes(options) && !cache.geometry.has(Form::kX))
    cache.attended_cells = static_cast<uint32_t>(at_peers);
  const uint64_t longest = options.max_model_len > 0 ? options.max_model_len : context;
  KV_RETURN_IF_ERROR(size_stage_ring(options, static_cast<uint32_t>(longest), device, cache));
  // The ring begins where the frames end, at a multiple of a cache line.
  const uint64_t odd = cache.stage_bytes > 0 ? (device - cache.stage_bytes) % 64 : 0;
  cache.stage_bytes += odd;
  cache.device_bytes = device - cache.stage_bytes;
  // What is copied at once has room on the device.
  if (shares_prefixes(options)) cache.prefix_cells = cache.cells(Tier::kDevice);
  return {};
}

}  // namespace

uint64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string line;
  uint64_t available = kUnknownMemory;
  while (std::getline(in, line)) {
    if (line.starts_with("MemAvailable:")) available = std::strtoull(line.c_str() + 13, nullptr, 10) * kKiB;
  }
  const auto limit = cgroup_number("memory.max"), used = cgroup_number("memory.current");
  if (limit && used) available = std::min(available, *limit - std::min(*limit, *used));
  return available;
}

Status size_tiers(const RuntimeOptions& options, uint64_t context, uint64_t available, EngineOptions& engine,
                  const std::optional<GpuRoom>& gpu) {
  if (options.max_model_len > context) {
    return error(ErrorCode::kInvalidArgument, "--max-model-len {}: the model was trained for {} tokens",
                 options.max_model_len, context);
  }
  CacheOptions& cache = engine.cache;
  KV_RETURN_IF_ERROR(divide_memory(options, context, available, gpu, cache));
  const uint64_t fit = Engine::longest_fit(cache);
  if (fit == 0 && gpu && options.kv_cache_memory_bytes == 0) {
    return error(ErrorCode::kExhausted,
                 "--gpu-memory-utilization {}: weights and activations leave {} for keys and values, and one "
                 "block of {} tokens needs {}; give more, or a smaller --max-model-len, "
                 "--max-num-batched-tokens or model",
                 options.gpu_memory_utilization.value_or(kDefaultGpuShare), format_bytes(gpu->usual_bytes),
                 options.block_size, format_bytes(cache.geometry.kv_block_bytes()));
  }
  if (fit == 0) {
    return error(ErrorCode::kExhausted,
                 "--kv-cache-memory-bytes {}: one block of {} tokens needs {}{}; give more, or a smaller "
                 "--block-size",
                 format_bytes(cache.device_bytes + cache.stage_bytes), options.block_size,
                 format_bytes(cache.geometry.kv_block_bytes()),
                 cache.stage_bytes > 0
                     ? fmt::format(" beside the stage ring's {}", format_bytes(cache.stage_bytes))
                     : "");
  }
  if (options.max_model_len > fit) {
    return error(ErrorCode::kExhausted,
                 "--max-model-len {}: {} hold requests of {} tokens together; give one of them more",
                 options.max_model_len, memory_flags(options, gpu.has_value(), cache), fit);
  }
  engine.max_model_len =
      options.max_model_len > 0 ? options.max_model_len : static_cast<uint32_t>(std::min(context, fit));
  return {};
}

}  // namespace kvasir
