// One command's question, from its options to what is printed and written.
#pragma once

#include <iosfwd>
#include <vector>

#include "base/status.h"
#include "simulate/simulate.h"
#include "simulate/study.h"

namespace kvasir {

struct Console {
  std::ostream& out;
  std::ostream& err;
  bool terminal;  // `err` is one, and shows a bar that is drawn over
};

struct Answer {
  double capacity = 0;  // requests per second
  BenchConfig config;
  std::vector<PolicyRuns> policies;
  std::vector<EffectiveThroughput> effective;  // where that was asked instead
};

// An error is one line.
Result<Answer> answer(const SimulateOptions& options, const Console& console);

}  // namespace kvasir
