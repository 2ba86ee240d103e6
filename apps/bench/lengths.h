// Lengths of requests as they were met elsewhere: a model of ShareGPT's, and recorded traces.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvasir {

struct Lengths {
  int64_t prompt = 1;  // tokens
  int64_t output = 1;  // tokens
};

// The length times `scale`, to the nearest token, and at least one.
int64_t scale_length(int64_t length, double scale);

// The lengths of first turns of ShareGPT: independent lognormal draws, drawn again until they lie in the
// ranges of ShareGPT's row in CacheOpt's Table 1 (prompt 16 to 3,200, mean 161.31; output 19 to 991, mean
// 337.99) and the two together are at most 2,048, where the papers cut. They depend on seed and number alone.
Lengths sharegpt_lengths(uint64_t seed, int64_t number);

struct TraceRow {
  double arrival_s = 0;
  Lengths lengths;
};

// A CSV file whose first line names its columns, among them arrival (or arrival_s), prompt (prompt_tokens)
// and output (output_tokens); others are skipped. Arrivals are seconds and do not descend. `name` is what the
// errors call the input: kInvalidArgument names the line at fault.
Result<std::vector<TraceRow>> parse_trace(std::istream& in, const std::string& name);

// As parse_trace, of the file at `path`; kNotFound when it cannot be opened.
Result<std::vector<TraceRow>> load_trace(const std::string& path);

}  // namespace kvasir
