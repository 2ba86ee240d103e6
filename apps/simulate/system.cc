#include "apps/simulate/system.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "apps/simulate/catalog/catalog.h"
#include "apps/simulate/cluster_system.h"
#include "apps/simulate/host_device.h"
#include "base/units.h"
#include "cache/commit/stage_ring_size.h"
#include "runtime/engine_options.h"
#include "runtime/tier_sizes.h"
#include "sched/beliefs/cost_fit.h"
#include "sched/registry.h"

namespace kvasir {
namespace {

constexpr double kLinkLatency = 10e-6;  // of one transfer over PCIe: assumed, no profile has it
// Of a disk beside the devices of the catalogue: a local one of these days, assumed.
constexpr double kDiskBytesPerS = 3e9;
// Of a request that waits until peers have room: it queues, as one that waits for its own instance's memory.
constexpr Nanos kBorrowTimeout = 3600 * kNanosPerSecond;
// Of an element of X: as most models compute; and in eight bits, with a scale in two bytes for each group of
// 32, as this engine's own kernels do.
constexpr double kF16Bytes = 2;
constexpr double kInt8Bytes = 1 + 2.0 / 32;

SimLink::Costs link_of(double bytes_per_s) {
  SimLink::Costs out{};
  const LinkCost pcie = {kLinkLatency, 1 / bytes_per_s};
  const LinkCost disk = {100e-6, 1 / std::min(bytes_per_s, kDiskBytesPerS)};
  out[index_of(Tier::kDevice)][index_of(Tier::kHost)] = pcie;
  out[index_of(Tier::kHost)][index_of(Tier::kDevice)] = pcie;
  for (Tier memory : {Tier::kDevice, Tier::kHost}) {
    out[index_of(memory)][index_of(Tier::kDisk)] = disk;
    out[index_of(Tier::kDisk)][index_of(memory)] = disk;
  }
  return out;
}

StepWork work_of(const StepLoad& load) {
  StepWork w;
  for (const StepLoad::Chunk& c : load.chunks) w.add_prefill(c.history, c.rows);
  w.decode_rows = load.decode_rows;
  w.decode_context = load.decode_context;
  w.projected_tokens = load.projected;
  return w;
}

// Of steps that take so many times less.
class FasterTimes final : public StepTimes {
 public:
  FasterTimes(std::shared_ptr<const StepTimes> times, double speed)
      : times_(std::move(times)), speed_(speed) {}
  double seconds(const StepLoad& load) const override { return times_->seconds(load) / speed_; }
  double collective_seconds(const StepLoad& load) const override {
    return times_->collective_seconds(load) / speed_;
  }

 private:
  const std::shared_ptr<const StepTimes> times_;
  const double speed_;
};

// The rates are sums of curves of logarithms.
void multiply(std::vector<Curve>& rates, double times) {
  for (double& y : rates.front().y) y += std::log2(times);
}

void change(DeviceSpec& device, const SystemChanges& changes) {
  for (KernelCoefficients* kernel : {&device.gemm, &device.prefill_attention, &device.decode_grouped,
                                     &device.decode_single, &device.elementwise}) {
    if (!kernel->flop_rate.empty()) multiply(kernel->flop_rate, changes.arithmetic);
    if (!kernel->byte_rate.empty()) multiply(kernel->byte_rate, changes.bandwidth);
  }
}

Result<SimulatedSystem> catalogued(const SimulateOptions& o) {
  KV_ASSIGN_OR_RETURN(const DeviceTimes times, device_times(o));
  const ModelShape& model = times.model();
  const DeviceSpec& device = times.device();
  const Parallelism& parallel = times.parallelism();
  KV_ASSIGN_OR_RETURN(const DeviceMemory memory, memory_of(model, device, parallel, o.memory_utilisation));
  SimulatedSystem out;
  out.model = model.name;
  out.device = device.name;
  if (parallel.cards() > 1) {
    out.device +=
        fmt::format(" x {} (tensor {}, pipeline {})", parallel.cards(), parallel.tensor, parallel.pipeline);
  }
  out.noise = std::max(0.0, o.noise);
  const double link = o.changes.link * (o.runtime.link_gbytes_per_s > 0 ? o.runtime.link_gbytes_per_s * 1e9
                                                                        : device.pcie.usable());
  // What one card holds of a layer's K and V. With pipeline stages a card has fewer layers: memory and links
  // for all of them are those of the stages together.
  out.link = link_of(link * parallel.pipeline);
  out.layers = model.layers;
  out.windows = model.windows;
  const double kv_heads = std::max(1.0, static_cast<double>(model.kv_heads) / parallel.tensor);
  out.kv_heads = static_cast<uint32_t>(kv_heads);
  out.head_dim = model.head_dim;
  out.queries_per_kv = std::max(1u, model.heads / parallel.tensor / out.kv_heads);
  out.kv_plane_bytes_per_token_layer =
      static_cast<uint64_t>(std::llround(kv_heads * model.head_dim * model.kv_element_bytes));
  out.kv_planes = model.kv_planes();
  // The operand of the projection. Over several cards each keeps its share of it: what gathering it costs is
  // left out.
  const double x_bytes = model.hidden * (o.hidden_cache_dtype == "int8" ? kInt8Bytes : kF16Bytes);
  out.x_bytes_per_token_layer =
      round_up(static_cast<uint64_t>(std::ceil(x_bytes / parallel.tensor)), uint64_t{4});
  // A longer --max-model-len stretches the model, as papers do.
  out.context = std::max(model.max_positions, o.runtime.max_model_len);
  if (out.context == 0) {
    return error(ErrorCode::kInvalidArgument,
                 "{} does not say how long a context it takes: give --max-model-len", o.model);
  }
  // The fullest stage decides how many tokens there is room for.
  const uint64_t token_bytes = out.kv_bytes_per_token();
  out.kv_cache_bytes = memory.kv_tokens(model, parallel) * token_bytes;
  if (o.runtime.kv_cache_memory_bytes > out.kv_cache_bytes) {
    return error(ErrorCode::kExhausted, "--kv-cache-memory-bytes {}: beside the weights there is room for {}",
                 format_bytes(o.runtime.kv_cache_memory_bytes), format_bytes(out.kv_cache_bytes));
  }
  if (o.runtime.kv_cache_memory_bytes > 0) out.kv_cache_bytes = o.runtime.kv_cache_memory_bytes;
  out.memory =
      fmt::format("memory of a device: weights {}, KV cache {}, activations and the rest {}",
                  format_bytes(memory.weights), format_bytes(memory.kv_cache), format_bytes(memory.reserve));
  out.times = std::make_shared<DeviceTimes>(times);
  out.costs = believed_costs(*out.times, out.context, times.model().expert_share());
  return out;
}

Result<SimulatedSystem> measured(const SimulateOptions& o) {
  KV_ASSIGN_OR_RETURN(const HostDevice host, load_host_device(o.device));
  if (!o.model.empty() && o.model != host.model) {
    return error(ErrorCode::kInvalidArgument,
                 "--model {}: {} is the truth of {}; leave --model out, or profile the other one", o.model,
                 o.device, host.model);
  }
  if (o.tensor_parallel * o.pipeline_parallel > 1) {
    return error(
        ErrorCode::kInvalidArgument,
        "--tensor-parallel-size and --pipeline-parallel-size: {} is a machine, of which there is one",
        o.device);
  }
  if (o.runtime.kv_cache_memory_bytes == 0) {
    return error(ErrorCode::kInvalidArgument, "--device {}: give --kv-cache-memory-bytes, as to serve",
                 o.device);
  }
  SimulatedSystem out;
  out.link = o.runtime.link_gbytes_per_s > 0 ? link_of(o.changes.link * o.runtime.link_gbytes_per_s * 1e9)
                                             : host.links;
  for (Tier slower : {Tier::kHost, Tier::kDisk}) {
    const uint64_t bytes =
        slower == Tier::kHost ? o.runtime.kv_offloading_bytes : o.runtime.kv_offloading_disk_bytes;
    // What goes there comes back.
    const bool measured_both_ways =
        out.link[index_of(slower)][index_of(Tier::kDevice)].seconds_per_byte > 0 &&
        out.link[index_of(Tier::kDevice)][index_of(slower)].seconds_per_byte > 0;
    if (bytes == 0 || measured_both_ways) continue;
    return error(
        ErrorCode::kInvalidArgument,
        "--device {}: its link to the {} was not measured; give --link-gbytes-per-s, or profile again with "
        "the same tiers",
        o.device, name(slower));
  }
  out.model = host.model;
  out.device = std::filesystem::path(o.device).filename().string();
  out.noise = o.noise >= 0 ? o.noise : host.noise;
  out.request_overhead = from_seconds(host.request_s);
  out.layers = host.geometry.layers;
  out.head_dim =
      static_cast<uint32_t>(std::max<uint64_t>(1, host.geometry.kv_plane_bytes_per_token_layer / 2));
  out.kv_plane_bytes_per_token_layer = host.geometry.kv_plane_bytes_per_token_layer;
  out.kv_planes = host.geometry.kv_planes;
  out.x_bytes_per_token_layer = host.geometry.x_bytes_per_token_layer;
  out.context = host.max_model_len;
  out.kv_cache_bytes = o.runtime.kv_cache_memory_bytes;
  out.memory = fmt::format("memory: KV cache {}", format_bytes(out.kv_cache_bytes));
  out.times = host.times;
  out.costs = believed_costs(*out.times, out.context);
  return out;
}

}  // namespace

bool names_host_device(const std::string& device) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(device, ignored) && !find_device(device).ok();
}

CostModel believed_costs(const StepTimes& times, uint32_t context, double expert_share) {
  std::vector<StepObservation> seen;
  const auto see = [&](const StepLoad& load) { seen.push_back({work_of(load), times.seconds(load)}); };
  const double most = context;
  for (double rows : {16., 64., 256., 512., 1024., 2048., 4096.}) {
    for (double history : {0., 512., 2048., 8192.}) {
      if (rows + history > most) continue;
      StepLoad load;
      load.chunks.push_back({rows, history});
      load.sampled = 1;
      see(load);
      load.decode_rows = 16;
      load.decode_context = 16 * std::min(512., most);
      load.sampled = 17;
      see(load);
    }
  }
  for (double batch : {1., 4., 16., 32., 64., 128., 256.}) {
    for (double length : {64., 256., 1024., 4096., 16384.}) {
      if (length > most) continue;
      StepLoad load;
      load.decode_rows = load.sampled = batch;
      load.decode_context = batch * length;
      see(load);
    }
  }
  for (double projected : {1e3, 1e4, 1e5}) {
    StepLoad load;
    load.decode_rows = load.sampled = 16;
    load.decode_context = 16 * std::min(512., most);
    load.projected = projected;
    see(load);
  }
  CostModel out;
  out.expert_share = expert_share;
  fit_steps(seen, out);
  return out;
}

Result<DeviceTimes> device_times(const SimulateOptions& o) {
  if (o.model.empty()) {
    return error(ErrorCode::kInvalidArgument, "--model: there are {}; or give a config.json or a GGUF file",
                 fmt::join(model_names(), ", "));
  }
  if (o.device.empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "--device: there are {}; or give a file that kvasir profile --full has written",
                 fmt::join(device_names(), ", "));
  }
  KV_ASSIGN_OR_RETURN(const ModelShape model, find_model(o.model));
  KV_ASSIGN_OR_RETURN(DeviceSpec device, find_device(o.device));
  const Parallelism parallel{o.tensor_parallel, o.pipeline_parallel};
  KV_RETURN_IF_ERROR(DeviceTimes::check(model, device, parallel));
  change(device, o.changes);
  KV_ASSIGN_OR_RETURN(const EngineOverhead overhead, find_overhead(o.engine_overhead, parallel.tensor));
  return DeviceTimes(model, device, parallel, overhead);
}

Result<SimulatedSystem> make_system(const SimulateOptions& options) {
  KV_ASSIGN_OR_RETURN(SimulatedSystem out,
                      names_host_device(options.device) ? measured(options) : catalogued(options));
  const SystemChanges& c = options.changes;
  out.kv_cache_bytes = static_cast<uint64_t>(c.memory * static_cast<double>(out.kv_cache_bytes));
  if (c.speed != 1) {
    out.times = std::make_shared<FasterTimes>(std::move(out.times), c.speed);
    out.costs = believed_costs(*out.times, out.context, out.costs.expert_share);
  }
  out.costs.links = out.link;
  out.costs = out.costs.scaled(options.belief_scale);
  return out;
}

Result<EngineOptions> engine_of(const SimulateOptions& o, const SimulatedSystem& system,
                                const std::string& policy) {
  KV_RETURN_IF_ERROR(make_policy(policy).status());
  RuntimeOptions runtime = o.runtime;
  runtime.scheduling_policy = policy;
  runtime.kv_cache_memory_bytes = system.kv_cache_bytes;
  if (lends(o, policy)) {
    runtime.cluster.directory = "simulated";
  } else if (o.instances > 1) {
    runtime.max_model_len = 0;
  }
  KV_RETURN_IF_ERROR(check_limits(runtime));
  EngineOptions engine = engine_options(runtime);
  KV_ASSIGN_OR_RETURN(engine.cache.geometry,
                      make_geometry(runtime, system.layers, system.kv_plane_bytes_per_token_layer,
                                    system.x_bytes_per_token_layer, system.kv_planes));
  if (system.kv_planes == 1 && lends(o, policy)) {
    return error(ErrorCode::kUnsupported,
                 "{} has latent attention, which instances cannot compute for each other; take another "
                 "policy or model",
                 system.model);
  }
  // Instances that lend do not compute windows for each other.
  if (!system.windows.empty() && !lends(o, policy))
    add_windows(runtime, system.windows, engine.cache.geometry);
  if (lends(o, policy)) {
    // What the others have beside their rings.
    const CacheGeometry& g = engine.cache.geometry;
    const uint64_t memory = runtime.kv_cache_memory_bytes;
    const uint64_t ring =
        runtime.stage_ring_bytes > 0 ? runtime.stage_ring_bytes : peers_ring_bytes(g, memory, 0);
    const uint64_t cells = (memory - std::min(memory, ring)) / g.kv_cell_bytes();
    const auto lent = static_cast<uint64_t>(o.lend_share * static_cast<double>(cells));
    runtime.cluster.borrow_bytes = (o.instances - 1) * lent * g.kv_cell_bytes();
  }
  engine.cache.numerics_id = "simulation";
  engine.vocab_size = INT32_MAX;
  constexpr uint64_t kNoBound = uint64_t{1} << 60;
  KV_RETURN_IF_ERROR(size_tiers(runtime, system.context, kNoBound, engine));
  if (lends(o, policy)) engine.borrow_timeout = kBorrowTimeout;
  return engine;
}

}  // namespace kvasir
