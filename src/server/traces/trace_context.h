// The trace of which a request is a part: W3C Trace Context, level 2 (the headers traceparent and
// tracestate).
#pragma once

#include <string>
#include <string_view>

#include "server/request_head.h"

namespace kvasir {

// Ids are in lower-case hexadecimal digits, and not all zero.
struct TraceContext {
  std::string trace_id;   // 32 digits; empty: the request is part of no trace
  std::string parent_id;  // 16 digits: the span of the caller; empty: there is none
  std::string span_id;    // 16 digits: the span of the request here
  std::string state;      // tracestate, passed on as it came
  bool sampled = false;   // the spans are wanted
  bool random = false;    // the trace id is of random digits

  bool on() const { return !trace_id.empty(); }
};

// That of the request's headers, with a new span id. One that is not as the standard says counts as none:
// exactly one traceparent, a version other than ff, the lengths of version 00, ids that are not zero. A
// tracestate that is not as the standard says is dropped alone.
TraceContext read_trace_context(const HeaderList& headers);

// 16 random digits.
std::string new_span_id();

// A trace that begins here, and is sampled.
TraceContext new_trace_context();

// As traceparent and traceresponse have it: 00-TRACE_ID-SPAN_ID-FLAGS.
std::string trace_header(const TraceContext& context);

}  // namespace kvasir
