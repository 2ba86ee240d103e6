// What a report draws of one run: distributions and the course of time, small enough to be kept with it.
#pragma once

#include <vector>

#include "bench/load_runner.h"

namespace kvasir {

struct Curves {
  // The percentiles 0, 1, ..., 100 in milliseconds; empty when there is nothing to tell. TTFT and E2EL are of
  // the completed requests, TBT of the gaps between chunks with content of all of them.
  std::vector<double> ttft_ms, tbt_ms, e2el_ms;
  // Averages over slices of bin_s seconds, as the client sees it: requests from their first chunk to their
  // end (running), from sending to the first chunk (waiting), and output tokens per second.
  double bin_s = 0;
  std::vector<double> running, waiting, output_per_s;
};

Curves curves_of(const LoadOutcome& outcome);

}  // namespace kvasir
