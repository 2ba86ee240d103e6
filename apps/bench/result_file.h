// The result as JSON, with vLLM's keys. docs/benchmarking.md lists them all.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/curves.h"
#include "apps/bench/dataset.h"
#include "apps/bench/report.h"
#include "apps/report/chart.h"
#include "base/status.h"

namespace kvasir {

// One run, as it is kept.
struct RunResult {
  RunKey key;
  Summary summary;
  Curves curves;
  LoadOutcome outcome;  // its records are needed with options.save_detailed only
};

// date: nothing: not said. The settings, and the figures of the runs: of the only one at the top, or of each
// in "runs" with the means of each rate in "points" (and at the top, when there is one rate) and their 95 %
// intervals in "intervals". With options.save_detailed a run has also one entry per request in ttfts, itls,
// latencies, start_times (seconds; start_times from the beginning of the load, and -1 for a request never
// sent), input_lens, output_lens, generated_texts and errors (empty when it completed). REQUIRES: runs is not
// empty; those of a rate follow each other
std::string result_json(const std::vector<RunResult>& runs, const BenchConfig& config,
                        const std::string& model, std::optional<std::time_t> date);

// The runs by rate, in their order.
std::vector<PointResult> points_of(const std::vector<RunResult>& runs);

// options.result_filename, or a name from the rate, the concurrency, the model and the date; within
// options.result_dir.
std::string result_path(const BenchConfig& config, const std::string& model, std::time_t date);

// Makes the directory if need be. kIo names what could not be written, and `flag` that says where.
Status write_text(const std::string& path, const std::string& text, const char* flag);

// What --svg asks for: NAME.svg in `folder` for each chart, as it is drawn on a wide page.
Status write_charts(const std::string& folder, const std::vector<std::pair<std::string, DrawnChart>>& charts);

}  // namespace kvasir
