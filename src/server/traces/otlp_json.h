// Spans as OTLP has them in JSON (opentelemetry-proto, ExportTraceServiceRequest).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "server/traces/span.h"

namespace kvasir {

// One line of JSON; `resource` says of which process the spans are.
std::string otlp_json(std::span<const Span> spans, const SpanAttributes& resource, std::string_view version);

// How many spans the collector did not take, by the body of its answer to them.
uint64_t rejected_spans(std::string_view answer);

}  // namespace kvasir
