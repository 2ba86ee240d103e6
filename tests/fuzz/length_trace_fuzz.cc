// A file of requests with the lengths of their outputs, from anywhere: reading ends, and what was read is
// written as it can be read again.
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#include "apps/predictor/length_trace.h"
#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
  const auto parsed = kvasir::parse_length_trace(in, "trace");
  if (!parsed.ok()) return 0;
  const std::string text = kvasir::length_trace_text(*parsed);
  std::istringstream again(text);
  const auto read = kvasir::parse_length_trace(again, "again");
  KV_CHECK(read.ok(), "{}", read.status().message());
  KV_CHECK(kvasir::length_trace_text(*read) == text, "written otherwise the second time");
  return 0;
}
