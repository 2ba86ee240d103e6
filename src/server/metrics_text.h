// The page /metrics: the text format of Prometheus, and vLLM's names.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/metrics.h"
#include "server/http_counters.h"
#include "server/keys/key_ring.h"

namespace kvasir {

// A metric of another source than the engine and the HTTP server. It has no labels of its own.
struct OutsideMetric {
  const char* name;  // without the prefix
  const char* type;  // gauge, counter
  double value = 0;
  const char* help;
};

// Before the names of metrics that vLLM has, too: "kvasir:", or "vllm:", so that what reads vLLM's page reads
// this one. With kVllm those have vLLM's label `engine`, and names of earlier versions beside the new ones.
enum class MetricsPrefix : uint8_t { kKvasir, kVllm };

// Reads counters while other threads write them. `keys` is null if there are none. `engine` is
// null while the model loads.
std::string metrics_text(const EngineMetrics* engine, const HttpCounters& http, const std::string& model_name,
                         const std::vector<std::pair<std::string, std::string>>& cache_config,
                         const std::vector<OutsideMetric>& outside = {}, const KeyRing* keys = nullptr,
                         MetricsPrefix prefix = MetricsPrefix::kKvasir);

}  // namespace kvasir
