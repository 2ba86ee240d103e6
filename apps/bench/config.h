// The options of `kvasir bench`, checked and taken apart.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bench/bench.h"
#include "bench/http_loop.h"

namespace kvasir {

enum class Metric { kTtft, kTpot, kItl, kE2el };

// "ttft", as in flags and JSON keys.
std::string_view metric_key(Metric metric);

// A bound on a request, which meets it when its value is at most `millis`.
struct Goal {
  enum class Key { kTtft, kTpot, kP99Tbt, kMaxTbt, kE2el };
  Key key = Key::kTtft;
  double millis = 0;
};

// "p99_tbt", as in flags and JSON keys.
std::string_view goal_key(Goal::Key key);

struct BenchConfig {
  BenchOptions options;  // as given; num_prompts is resolved when the dataset is read
  HttpTarget target;
  bool chat = false;        // the endpoint is the chat form
  std::string models_path;  // beside the endpoint: /v1/models
  std::vector<Metric> metrics;
  std::vector<double> percentiles;            // in (0, 100)
  std::vector<std::string> percentile_names;  // "99", "99.9"
  std::vector<Goal> goals;                    // that goodput asks for together
  std::vector<Goal> bounds;  // whose attainments are reported one by one, in the order of Goal::Key
  std::vector<std::pair<std::string, double>> slo_ms;  // sent to the server: "tbt", milliseconds
  std::vector<double> rates;  // one run each; infinite: all at once, or the trace's own arrivals
};

// kInvalidArgument or kUnsupported names the flag at fault and says what it takes.
Result<BenchConfig> check_options(const BenchOptions& options);

}  // namespace kvasir
