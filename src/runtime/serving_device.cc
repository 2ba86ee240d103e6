#include "runtime/serving_device.h"

#include <utility>

#include "runtime/device_limits.h"
#include "runtime/open_cuda_gpu.h"

namespace kvasir {

Result<std::unique_ptr<ServingDevice>> make_serving_device(const RuntimeOptions& options,
                                                           const Decoder::Options& decoder) {
  if (!is_on_gpu(options)) return make_cpu_device(decoder);
  auto gpu = options.open_gpu ? options.open_gpu() : open_cuda_gpu();
  if (!gpu.ok()) return error(gpu.status().code(), "--device cuda: {}", gpu.status().message());
  return make_gpu_device(*std::move(gpu));
}

}  // namespace kvasir
