// The engine as the server's backend.
#include <string>
#include <utility>

#include "engine/engine.h"
#include "server/backend.h"

namespace kvasir {
namespace {

class EngineBackend final : public Backend {
 public:
  explicit EngineBackend(Engine& engine) : engine_(engine) {}

  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<OutputSink> sink) override {
    return engine_.submit(std::move(request), std::move(sink));
  }
  void cancel(RequestId id) override { engine_.cancel(id); }
  uint32_t max_model_len() const override { return engine_.options().max_model_len; }
  const EngineMetrics& metrics() const override { return engine_.metrics(); }
  std::vector<std::pair<std::string, std::string>> cache_config() const override {
    const CacheOptions& cache = engine_.options().cache;
    return {{"block_size", std::to_string(cache.geometry.block_tokens)},
            {"num_device_blocks", std::to_string(engine_.metrics().kv_blocks_total.load())},
            {"device_bytes", std::to_string(cache.device_bytes)},
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
