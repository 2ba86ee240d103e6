// Sends the prompts at their arrival times and follows the answers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/completion_stream.h"
#include "apps/bench/http_loop.h"
#include "apps/bench/prompts.h"
#include "base/clock.h"
#include "base/status.h"

namespace kvasir {

struct LoadProgress {
  int64_t total = 0;
  int64_t ended = 0;
  int64_t in_flight = 0;
  int64_t failed = 0;  // of those that have ended
  int64_t chunks = 0;  // with content, which are about as many tokens
  Nanos elapsed = 0;
};

struct LoadPlan {
  HttpTarget target;
  std::string path;  // of the completions endpoint
  std::string api_key;
  CompletionRequest request;
  std::vector<Prompt> prompts;
  std::vector<Nanos> arrivals;         // offsets from the start, ascending, one for each prompt
  int64_t max_concurrency = 0;         // 0: no bound
  Nanos timeout = 0;                   // for each request, from its start
  std::optional<Nanos> drain_timeout;  // after the last arrival; what is then left is given up
  bool keep_text = false;
  Nanos progress_period = 0;  // 0: progress is not called
  std::function<void(const LoadProgress&)> progress;
};

struct LoadOutcome {
  std::vector<RequestRecord> records;  // one for each prompt; only completed and failed
                                       // ones unless interrupted or drained_out
  Nanos start = 0;
  Nanos duration = 0;          // from the start to the end of the last request, or to the giving up
  int64_t max_concurrent = 0;  // the most requests in flight at once
  bool interrupted = false;
  bool drained_out = false;  // the drain timeout ended the run
};

// Blocks until every request has ended, or the drain timeout, or SIGINT or SIGTERM. A request starts at its
// arrival time whatever became of those before it; only max_concurrency holds it back, and the time that it
// then waits is no part of its latency. Those held back start in the order of arrival. An error only when the
// host has no address: what goes wrong with a request is in its record. REQUIRES: prompts and arrivals have
// the same length; timeout > 0
Result<LoadOutcome> run_load(const LoadPlan& plan);

}  // namespace kvasir
