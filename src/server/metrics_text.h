// Metrics in the text format of Prometheus, under vLLM's names with our prefix.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/metrics.h"
#include "server/http_counters.h"

namespace kvasir {

// Thread-safe: reads counters that others write. `engine` is null while the model loads.
std::string metrics_text(const EngineMetrics* engine, const HttpCounters& http, const std::string& model_name,
                         const std::vector<std::pair<std::string, std::string>>& cache_config);

}  // namespace kvasir
