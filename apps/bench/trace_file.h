// Recorded traces: lengths of requests, and when they came.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "apps/bench/lengths.h"
#include "base/status.h"

namespace kvasir {

struct TraceRow {
  double arrival_s = 0;  // 0 in a trace without arrivals
  Lengths lengths;
  uint32_t slo_class = 0;  // index into Trace::classes, where there are any
};

struct Trace {
  struct Class {
    std::string name;
    int64_t line = 0;  // of the file, where it comes first
  };
  std::vector<TraceRow> rows;
  std::vector<Class> classes;  // that the rows name; empty: no such column
  bool has_arrivals = false;
};

// A CSV file whose first line names its columns, among them prompt (or prompt_tokens) and output
// (output_tokens); and, where it has them, arrival (arrival_s) and class (slo_class). Others are skipped, and
// so are empty lines. Arrivals are seconds, at least 0, and do not descend. `name` is what the errors call
// the input: kInvalidArgument names the line at fault.
Result<Trace> parse_trace(std::istream& in, const std::string& name);

// As parse_trace, of the file at `path`; kNotFound when it cannot be opened.
Result<Trace> load_trace(const std::string& path);

}  // namespace kvasir
