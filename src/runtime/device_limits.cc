#include "runtime/device_limits.h"

#include <fmt/format.h>

#include <string>

#include "base/units.h"

namespace kvasir {
namespace {

// Of `flag`, with its value.
Status refused(const std::string& flag, const std::string& why, const std::string& instead) {
  return error(ErrorCode::kUnsupported, "{}: {}; {}, or serve it with --device cpu", flag, why, instead);
}

}  // namespace

bool is_on_gpu(const RuntimeOptions& options) {
  return options.device == "cuda";
}

Status check_device(const RuntimeOptions& o) {
  if (o.device == "cpu") {
    if (!o.enforce_eager) {
      return error(ErrorCode::kInvalidArgument,
                   "--no-enforce-eager: CUDA graphs are a GPU's; leave it out, or give --device cuda");
    }
    if (!o.gpu_memory_utilization) return {};
    return error(ErrorCode::kInvalidArgument,
                 "--gpu-memory-utilization {}: it is a share of a GPU's memory; leave it out, or give "
                 "--device cuda",
                 *o.gpu_memory_utilization);
  }
  if (!is_on_gpu(o))
    return error(ErrorCode::kInvalidArgument, "--device {}: there are cpu and cuda", o.device);
  const double share = o.gpu_memory_utilization.value_or(kDefaultGpuShare);
  if (!(share > 0 && share <= 1)) {
    return error(ErrorCode::kInvalidArgument,
                 "--gpu-memory-utilization {}: it is a share, above 0 and up to 1", share);
  }
  if (o.kv_cache_dtype != "bf16") {
    return refused(fmt::format("--kv-cache-dtype {}", o.kv_cache_dtype), "a GPU keeps K and V as bf16",
                   "leave it out");
  }
  if (o.activation_type != "auto") {
    return refused(fmt::format("--activation-type {}", o.activation_type),
                   "a GPU's products take bf16 rows, whatever the weights are", "leave it out");
  }
  if (!o.quantization.empty()) {
    return refused(fmt::format("--quantization {}", o.quantization),
                   "a GPU has all weights as bf16, so that it would save nothing", "leave it out");
  }
  if (o.cluster.on()) {
    return refused("--cluster", "instances on GPUs cannot lend each other memory yet", "leave it out");
  }
  if (o.tap_all_rows) {
    return refused("--text",
                   "a GPU gives the logits of sampled rows alone, and texts are compared in all of them",
                   "leave it out");
  }
  return {};
}

}  // namespace kvasir
