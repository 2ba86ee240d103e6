// The spans of a request that has ended.
#pragma once

#include <cstdint>
#include <vector>

#include "server/exchange_record.h"
#include "server/traces/span.h"

namespace kvasir {

// A span of the server, and below it, for each of the first prompts and choices: queue, prefill, decode, and
// a stall for each time that it was preempted. `time_ns`: of the end, since 1970. The names of attributes are
// OpenTelemetry's for HTTP and generative AI, and ours begin with kvasir. No attribute has text of a prompt
// or an answer.
std::vector<Span> request_spans(const EndedRequest& request, int64_t time_ns);

}  // namespace kvasir
