// What a load measured, and the printed block.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bench/completion_stream.h"
#include "bench/config.h"
#include "bench/load_runner.h"
#include "bench/stats.h"

namespace kvasir {

struct Summary {
  double duration = 0;  // seconds
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t unfinished = 0;  // not ended when the load was interrupted
  // Of the completed requests.
  int64_t total_input_tokens = 0;
  int64_t total_output_tokens = 0;
  int64_t without_usage = 0;  // whose tokens are words and chunks, for want of the server's usage
  int64_t good = 0;           // meet every goal
  int64_t max_concurrent = 0;
  bool interrupted = false;
  std::vector<Distribution> metrics;                    // milliseconds, in the order of BenchConfig::metrics
  std::vector<std::pair<std::string, int64_t>> errors;  // distinct, with their number, most frequent first

  double per_second(int64_t count) const { return duration > 0 ? static_cast<double>(count) / duration : 0; }
};

// Milliseconds, of a completed request. The time to first token; the time from sending to the last chunk; the
// mean time per output token after the first, 0 for fewer than two tokens.
double ttft_ms(const RequestRecord& record);
double e2el_ms(const RequestRecord& record);
double tpot_ms(const RequestRecord& record);

// Whether a completed request meets every goal. A request without gaps or without a second token has 0 there.
bool meets_goals(const RequestRecord& record, const std::vector<Goal>& goals);

Summary summarise(const LoadOutcome& outcome, const BenchConfig& config);

// The block in vLLM's layout, then what there is to say about token counts and failures.
std::string printed_block(const Summary& summary, const BenchConfig& config);

}  // namespace kvasir
