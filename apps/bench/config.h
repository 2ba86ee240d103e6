// The options of `kvasir bench`, checked and taken apart.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bench/bench.h"
#include "bench/http_loop.h"

namespace kvasir {

enum class Metric { kTtft, kTpot, kItl, kE2el };

// "ttft", as in flags and JSON keys.
std::string_view metric_key(Metric metric);

// One bound of --goodput, which a request meets when its value is at most `millis`.
struct Goal {
  enum class Key { kTtft, kTpot, kP99Tbt, kMaxTbt, kE2el };
  Key key = Key::kTtft;
  double millis = 0;
};

struct BenchConfig {
  BenchOptions options;  // as given; num_prompts is resolved when the prompts are made
  HttpTarget target;
  bool chat = false;        // the endpoint is the chat form
  std::string models_path;  // beside the endpoint: /v1/models
  std::vector<Metric> metrics;
  std::vector<double> percentiles;            // in (0, 100)
  std::vector<std::string> percentile_names;  // "99", "99.9"
  std::vector<Goal> goals;
};

// kInvalidArgument or kUnsupported names the flag at fault and says what it takes.
Result<BenchConfig> check_options(const BenchOptions& options);

}  // namespace kvasir
