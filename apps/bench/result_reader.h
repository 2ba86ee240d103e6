// Result files, read again for a report.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/curves.h"
#include "base/status.h"

namespace kvasir {

struct ReportRun {
  double rate = 0;                        // requests per second; may be infinite
  std::map<std::string, double> figures;  // by their JSON keys; those that are null are not there
  Curves curves;                          // empty in a file of another program
};

// One system, as a report shows it.
struct ReportSeries {
  std::string label;
  std::vector<std::pair<std::string, std::string>> settings;  // key and value, for people
  std::map<std::string, double> bounds_ms;  // by "ttft", "max_tbt", ...; not those of requests' own
  std::vector<ReportRun> runs;
};

// Takes what result_json wrote; also what vLLM's benchmark writes, without curves. A file without a label
// gets `name`, which is what the errors call it. kInvalidArgument when it is no result.
Result<ReportSeries> read_result(const std::string& json, const std::string& name);

// As read_result, of the file at `path`, whose stem is the label when it has none; kNotFound when it cannot
// be opened.
Result<ReportSeries> load_result(const std::string& path);

}  // namespace kvasir
