#include "runtime/serving_device.h"

#include <utility>

#include "exec/gpu/product_check.h"
#include "runtime/device_limits.h"
#include "runtime/open_cuda_gpu.h"

namespace kvasir {

namespace {

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

}  // namespace kvasir
