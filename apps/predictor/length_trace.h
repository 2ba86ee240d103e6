// Requests and the lengths of their outputs, as JSON lines.
//
//   {"messages": [{"role": "user", "content": "What is a raven?"}], "temperature": 0.7, "output_tokens": 57,
//    "finish_reason": "stop", "again": [61, 44]}
//
// "prompt", a text, may take the place of "messages". All other fields may be missing: temperature and top_p
// are then 1, and a request without "output_tokens" has not been answered yet. "finish_reason" is "stop", or
// "length" for an output that its limit has cut; "again" has the lengths of further answers to the same
// request. Unknown fields of a line are kept as they are.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvasir {

struct TracedRequest {
  std::string prompt;                                         // where there are no messages
  std::vector<std::pair<std::string, std::string>> messages;  // role and content
  double temperature = 1;
  double top_p = 1;
  uint32_t output_tokens = 0;  // 0: not yet known
  bool cut = false;            // the output would have been longer
  std::vector<uint32_t> again;
  std::string others;  // of its line, as JSON
};

// Empty lines are skipped. kInvalidArgument names `name` and the line at fault.
Result<std::vector<TracedRequest>> parse_length_trace(std::istream& in, const std::string& name);
// As above, of a file; kNotFound or kIo where it cannot be read.
Result<std::vector<TracedRequest>> load_length_trace(const std::string& path);

// One line for each, in the format above.
std::string length_trace_text(const std::vector<TracedRequest>& requests);

}  // namespace kvasir
