// What is read from the server's own /metrics.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "apps/bench/http_loop.h"

namespace kvasir {

// The sum over all labels of the samples called PREFIX:NAME in Prometheus' text, with the prefix kvasir or,
// when there is none of those, vllm. Nothing when there is no such sample.
std::optional<double> metric_sum(std::string_view page, std::string_view name);

// num_preemptions_total of the server; nothing when it has no /metrics, or they do not say. Blocks, for a few
// seconds at most.
std::optional<double> read_preemptions(const HttpTarget& target, const std::string& api_key);

}  // namespace kvasir
