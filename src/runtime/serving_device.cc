#include "runtime/serving_device.h"

#include <utility>

#include "base/units.h"
#include "exec/gpu/product_check.h"
#include "runtime/device_limits.h"
#include "runtime/open_cuda_gpu.h"

namespace kvasir {

namespace {

// Between a GPU and its host: smaller copies are slower (docs/gpu.md).
constexpr uint64_t kMoverUnitBytes = 2 * kMiB;

Status named(const Status& status) {
  return status.ok() ? status : error(status.code(), "--device cuda: {}", status.message());
}

}  // namespace

Status check_build(const RuntimeOptions& options) {
  return is_on_gpu(options) && !options.open_gpu ? named(check_cuda_build()) : Status();
}

Result<std::unique_ptr<ServingDevice>> make_serving_device(const RuntimeOptions& options,
                                                           const Decoder::Options& decoder) {
  if (!is_on_gpu(options)) return make_cpu_device(decoder);
  auto gpu = options.open_gpu ? options.open_gpu() : open_cuda_gpu();
  if (!gpu.ok()) return named(gpu.status());
  const Status checked = check_products(**gpu);
  if (!checked.ok() && checked.code() == ErrorCode::kExhausted) {
    return error(
        checked.code(),
        "--device cuda: the GPU has no room even for a check of its products: {}; end what else uses it, or "
        "serve with --device cpu",
        checked.message());
  }
  KV_RETURN_IF_ERROR(named(checked));
  return make_gpu_device(*std::move(gpu));
}

MemoryLinkOptions link_options(const RuntimeOptions& options, ServingDevice& device) {
  MemoryLinkOptions link;
  link.memory[index_of(Tier::kDevice)] = device.device_tier();
  link.memory[index_of(Tier::kHost)] = device.host_tier();
  link.mover = device.mover();
  if (link.mover != nullptr) {
    link.unit_bytes = kMoverUnitBytes;
    link.duplex = true;
    link.threads = kMoverUnits;
  }
  link.emulated_bytes_per_s = options.link_gbytes_per_s * 1e9;
  link.cpus = cpu_shares(options).others;
  return link;
}

}  // namespace kvasir
