// The result as JSON, with vLLM's keys.
#pragma once

#include <ctime>
#include <string>

#include "base/status.h"
#include "bench/report.h"

namespace kvasir {

// Latencies in milliseconds under mean_ttft_ms and so on, duration in seconds. With options.save_detailed
// also one entry per request in ttfts, itls, latencies, start_times (seconds; start_times from the beginning
// of the load, and -1 for a request never sent), input_lens, output_lens, generated_texts and errors (empty
// when it completed). request_goodput is null without --goodput.
std::string result_json(const Summary& summary, const LoadOutcome& outcome, const BenchConfig& config,
                        const std::string& model, std::time_t date);

// options.result_filename, or a name from the rate, the concurrency, the model and the date; within
// options.result_dir.
std::string result_path(const BenchConfig& config, const std::string& model, std::time_t date);

// Makes the directory if need be. kIo names what could not be written.
Status write_result(const std::string& path, const std::string& json);

}  // namespace kvasir
