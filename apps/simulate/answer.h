// The answer to one `kvasir simulate` command, from its options to what is printed and written.
#pragma once

#include <iosfwd>
#include <vector>

#include "apps/simulate/simulate.h"
#include "apps/simulate/study.h"
#include "base/status.h"

namespace kvasir {

struct Console {
  std::ostream& out;
  std::ostream& err;
  bool terminal;  // `err` is a terminal, on which a progress bar can be redrawn
};

struct Answer {
  double capacity = 0;  // requests per second
  BenchConfig config;
  std::vector<PolicyRuns> policies;
  std::vector<EffectiveThroughput> effective;  // if that was asked for
};

// An error is one line.
Result<Answer> answer(const SimulateOptions& options, const Console& console);

}  // namespace kvasir
