// The engine as the server's backend.
#include <string>
#include <string_view>
#include <utility>

#include "engine/engine.h"
#include "server/backend.h"

namespace kvasir {
namespace {

// The part of the numerics id that names the type of K and V.
std::string cache_dtype(const std::string& numerics_id) {
  constexpr std::string_view kField = "/kv-";
  const size_t at = numerics_id.find(kField);
  if (at == std::string::npos) return "unknown";
  const size_t begin = at + kField.size();
  return numerics_id.substr(begin, numerics_id.find('/', begin) - begin);
}

class EngineBackend final : public Backend {
 public:
  explicit EngineBackend(Engine& engine) : engine_(engine) {}

  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<OutputSink> sink) override {
    return engine_.submit(std::move(request), std::move(sink));
  }
  Result<std::unique_ptr<QueuePlaces>> reserve(std::span<const GenerationRequest> requests) override {
    return engine_.reserve(requests);
  }
  Result<RequestId> submit_in(QueuePlaces& places, GenerationRequest request,
                              std::shared_ptr<OutputSink> sink) override {
    return engine_.submit(std::move(request), std::move(sink), &places);
  }
  void cancel(RequestId id, FinishReason reason) override { engine_.cancel(id, reason); }
  Nanos silent_for() const override { return engine_.silent_for(); }
  uint32_t max_model_len() const override { return engine_.options().max_model_len; }
  const EngineMetrics& metrics() const override {
    engine_.observe_link();
    return engine_.metrics();
  }
  std::vector<std::pair<std::string, std::string>> cache_config() const override {
    const CacheOptions& cache = engine_.options().cache;
    const std::string blocks = std::to_string(engine_.metrics().kv_blocks_total.load());
    // Dashboards made for vLLM read num_gpu_blocks, whatever the device is.
    return {{"block_size", std::to_string(cache.geometry.block_tokens)},
            {"cache_dtype", cache_dtype(cache.numerics_id)},
            {"num_gpu_blocks", blocks},
            {"num_device_blocks", blocks},
            {"device_bytes", std::to_string(cache.device_bytes)},
            {"host_bytes", std::to_string(cache.host_bytes)},
            {"disk_bytes", std::to_string(cache.disk_bytes)},
            {"stage_bytes", std::to_string(cache.stage_bytes)},
            {"enable_prefix_caching", cache.prefix_caching ? "True" : "False"},
            {"numerics_id", cache.numerics_id}};
  }

 private:
  Engine& engine_;
};

}  // namespace

std::unique_ptr<Backend> make_engine_backend(Engine& engine) {
  return std::make_unique<EngineBackend>(engine);
}

}  // namespace kvasir
