// The command line's parts, for the commands that put load on something.
#pragma once

#include "apps/bench/bench.h"

namespace kvasir {

// Each registers its flags on `app`, to be written into `options`, which must live as long as `app` parses.
// What is asked: dataset or workload, lengths, seeds.
void add_dataset_flags(CLI::App& app, BenchOptions& options);
// When: rates, arrivals, bounds on time and concurrency; and whether progress is shown.
void add_load_flags(CLI::App& app, BenchOptions& options);
void add_arrival_flags(CLI::App& app, BenchOptions& options);  // of those, how arrivals are spread
// What is said of it: metrics, bounds, files.
void add_result_flags(CLI::App& app, BenchOptions& options);
void add_goal_flags(CLI::App& app, BenchOptions& options);  // of those, the bounds

}  // namespace kvasir
