// A part of a trace, as OpenTelemetry has it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace kvasir {

using SpanValue = std::variant<std::string, int64_t, double, std::vector<std::string>>;
// The names are literals: those of OpenTelemetry's semantic conventions, where these have one.
using SpanAttributes = std::vector<std::pair<const char*, SpanValue>>;

struct Span {
  enum class Kind : uint8_t { kInternal = 1, kServer = 2 };  // the numbers of OTLP

  std::string trace_id;  // hexadecimal digits, as those below
  std::string span_id;
  std::string parent_id;  // empty: there is none
  std::string trace_state;
  std::string name;
  Kind kind = Kind::kInternal;
  bool remote_parent = false;  // the parent is a span of the caller
  int64_t begin_ns = 0;        // since 1970
  int64_t end_ns = 0;
  SpanAttributes attributes;
  bool failed = false;
};

}  // namespace kvasir
