// What a load measured, and what is printed of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/completion_stream.h"
#include "apps/bench/config.h"
#include "apps/bench/load_runner.h"
#include "apps/bench/stats.h"

namespace kvasir {

// A figure that only an engine itself can tell, as a simulator does.
struct EngineFigure {
  std::string key;    // of the JSON file
  std::string label;  // of the printed block
  double value = 0;
  bool whole = false;  // a count
};

// Of so many requests, those that --trim leaves out at the start, and again at the end.
inline size_t trimmed_requests(double trim, size_t requests) {
  return static_cast<size_t>(trim * static_cast<double>(requests));
}

struct Summary {
  double duration = 0;  // seconds
  int64_t completed = 0;
  int64_t failed = 0;      // without those refused
  int64_t refused = 0;     // HTTP 503
  int64_t unfinished = 0;  // not ended when the load was interrupted, or the drain timeout came
  int64_t submitted = 0;   // arrived before the run ended
  int64_t judged = 0;      // of those, without what --trim leaves out: attainments are shares of these
  // Seconds in which the judged requests arrived; nothing where they did not arrive at times of their own:
  // all at once, or as earlier ones ended.
  std::optional<double> judged_s;
  // Of the completed requests.
  int64_t total_input_tokens = 0;
  int64_t total_output_tokens = 0;
  int64_t without_usage = 0;      // whose tokens are words and chunks, for want of the server's usage
  int64_t length_mismatches = 0;  // whose output has not the forced length
  int64_t good = 0;               // are judged and meet every goal
  std::vector<int64_t> attained;  // are judged and meet the bound, in the order of BenchConfig::bounds
  int64_t max_concurrent = 0;
  std::optional<double> steady_throughput;  // with --trim: steady_rate() of the completed requests
  bool interrupted = false;
  bool drained_out = false;
  std::optional<double> median_refusal_ms, max_refusal_ms;  // from sending to the end of a 503
  std::optional<double> preemptions;                        // that the server counted during the run
  // Of the judged requests that completed: milliseconds, in the order of BenchConfig::metrics.
  std::vector<Distribution> metrics;
  std::vector<std::pair<std::string, int64_t>> errors;  // distinct, with their number, most frequent first
  std::vector<EngineFigure> engine;                     // none where a server was measured from outside
  std::vector<std::pair<std::string, uint64_t>> decisions;  // reasons of plans, with their number; likewise

  double per_second(int64_t count) const { return duration > 0 ? static_cast<double>(count) / duration : 0; }
  // Good requests per second of the time in which the judged ones arrived, so that the drain behind the last
  // arrival counts in nothing; without such a time, of the whole run.
  double goodput() const {
    const double seconds = judged_s.value_or(duration);
    const double per_judged = judged_s ? static_cast<double>(judged) : static_cast<double>(submitted);
    return seconds > 0 ? share(good) * per_judged / seconds : 0;
  }
  // Of the judged requests, the share in [0, 1] that `count` is.
  double share(int64_t count) const {
    return judged > 0 ? static_cast<double>(count) / static_cast<double>(judged) : 0;
  }
};

// Requests per second in the middle of a run: how many end after the first `share` of all ends and no later
// than the first end of the last `share`, over the time between the two. Where all of those end at one
// instant it is the rate until then; 0 for no ends. Times are from the start. REQUIRES: 0 <= share < 0.5
double steady_rate(std::vector<Nanos> ends, double share);

Summary summarise(const LoadOutcome& outcome, const BenchConfig& config);

// What was measured at one rate: one summary for each seed.
struct PointResult {
  double rate = 0;  // requests per second; may be infinite
  std::vector<Summary> runs;
};

// The block in vLLM's layout, then what there is to say about token counts and failures. With several runs
// each figure is the mean and the half width of its 95 % interval. REQUIRES: point.runs is not empty
std::string printed_block(const PointResult& point, const BenchConfig& config);

// One line for each rate: throughput, goodput, attainment and tails.
std::string rate_table(const std::vector<PointResult>& points, const BenchConfig& config);

}  // namespace kvasir
