// Sends the prompts at their arrival times and follows the answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bench/completion_stream.h"
#include "bench/http_loop.h"
#include "bench/prompts.h"

namespace kvasir {

struct LoadPlan {
  HttpTarget target;
  std::string path;  // of the completions endpoint
  std::string api_key;
  CompletionRequest request;
  std::vector<Prompt> prompts;
  std::vector<Nanos> arrivals;  // offsets from the start, ascending, one for each prompt
  int64_t max_concurrency = 0;  // 0: no bound
  Nanos timeout = 0;            // for each request, from its start
  bool keep_text = false;
};

struct LoadOutcome {
  std::vector<RequestRecord> records;  // one for each prompt; kWaiting and kSent only after an interrupt
  Nanos start = 0;
  Nanos duration = 0;          // from the start to the end of the last request, or to the interrupt
  int64_t max_concurrent = 0;  // the most requests in flight at once
  bool interrupted = false;
};

// Blocks until every request has ended, or until SIGINT or SIGTERM. A request starts at its arrival time
// whatever became of those before it; only max_concurrency holds it back, and the time that it then waits is
// no part of its latency. Those held back start in the order of arrival. An error only when the host has no
// address: what goes wrong with a request is in its record. REQUIRES: prompts and arrivals have the same
// length; timeout > 0
Result<LoadOutcome> run_load(const LoadPlan& plan);

}  // namespace kvasir
