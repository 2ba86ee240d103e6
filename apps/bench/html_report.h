// A report that one reads in a browser: one file, with nothing fetched and no scripts.
#pragma once

#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/bench.h"
#include "apps/bench/result_reader.h"
#include "apps/report/chart.h"
#include "base/status.h"

namespace kvasir {

// Each chart of the report, with the name of its file.
std::vector<std::pair<std::string, DrawnChart>> report_charts(const std::vector<ReportSeries>& series);

// Settings, a table, curves over the rate where there are several, and for each rate the distributions of
// latencies and the course of time. Several systems are drawn in the same pictures. Every text is escaped.
// REQUIRES: every series has a run
std::string html_report(const std::vector<ReportSeries>& series, const std::string& title = "kvasir bench");

// Writes what --html and --svg ask for, and says so on `out`.
Status write_report(const BenchOptions& options, const std::vector<ReportSeries>& series,
                    const std::string& title, std::ostream& out);

}  // namespace kvasir
