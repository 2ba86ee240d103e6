// The options of `kvasir bench`, checked and taken apart.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/bench/bench.h"
#include "apps/bench/goals.h"
#include "apps/bench/http_loop.h"
#include "apps/bench/rates.h"
#include "apps/bench/slo_classes.h"
#include "base/status.h"

namespace kvasir {

enum class Metric { kTtft, kTpot, kItl, kE2el };

// "ttft", as in flags and JSON keys.
std::string_view metric_key(Metric metric);

// The shape of the gamma distribution of the gaps, by either of the two flags.
double arrival_shape(const BenchOptions& options);

struct BenchConfig {
  std::string backend = "openai";                           // what answered, as result files say it
  std::vector<std::pair<std::string, std::string>> system;  // what else they say of it: key and value
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
  // Where requests have bounds of their own, goals and bounds hold their keys with kOwnBound.
  std::vector<SloClass> classes;          // none: the run's goals are for all
  std::optional<RelativeSlo> relative;    // of the reference, which may come later
  std::optional<SloReference> reference;  // as --slo-reference says
  std::vector<RateSpec> rate_specs;       // as asked for; at least one
  std::vector<double> rates;  // one run each; infinite: all at once, or the trace's own arrivals. Empty while
                              // a multiple of a capacity is not resolved
};

// Flags of the dataset, the load and the result, which need no server. kInvalidArgument or kUnsupported
// names the flag at fault and says what it takes. Leaves target, chat and models_path as they are.
Result<BenchConfig> check_load_options(const BenchOptions& options);

// All of them, and the server's: no multiples of a capacity, and relative bounds only with a reference.
Result<BenchConfig> check_options(const BenchOptions& options);

}  // namespace kvasir
