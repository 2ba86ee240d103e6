// A report that one reads in a browser: one file, with nothing fetched and no scripts.
#pragma once

#include <string>
#include <vector>

#include "apps/bench/result_reader.h"

namespace kvasir {

// Settings, a table, curves over the rate where there are several, and for each rate the distributions of
// latencies and the course of time. Several systems are drawn in the same pictures. Every text is escaped.
// REQUIRES: every series has a run
std::string html_report(const std::vector<ReportSeries>& series, const std::string& title = "kvasir bench");

}  // namespace kvasir
