// What a report draws of one run: distributions and the course of time, small enough to be kept with it.
#pragma once

#include <string>
#include <vector>

#include "apps/bench/load_runner.h"

namespace kvasir {

// Slices of a run's time.
constexpr size_t kCurveSlices = 120;

// What only an engine itself can tell, as a simulator does: one line of one chart, averages over the slices.
struct EngineLine {
  std::string chart;  // with its unit, as "Memory, GiB"
  std::string name;
  std::vector<double> values;
};

struct Curves {
  // The percentiles 0, 1, ..., 100 in milliseconds; empty when there is nothing to tell. TTFT and E2EL are of
  // the completed requests, TBT of the gaps between chunks with content of all of them.
  std::vector<double> ttft_ms, tbt_ms, e2el_ms;
  // Averages over slices of bin_s seconds, as the client sees it: requests from their first chunk to their
  // end (running), from sending to the first chunk (waiting), and output tokens per second.
  double bin_s = 0;
  std::vector<double> running, waiting, output_per_s;
  std::vector<EngineLine> engine;  // those of a chart follow each other; none where a server was measured
};

Curves curves_of(const LoadOutcome& outcome);

}  // namespace kvasir
