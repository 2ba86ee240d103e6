// How far a run is, on standard error: a bar that is drawn over on a terminal, a line now and then elsewhere.
#pragma once

#include <iosfwd>
#include <string>

#include "apps/bench/load_runner.h"

namespace kvasir {

// "12/64 done, 8 running, 0 failed, 123 tok/s, 40 s left"; tokens per second are chunks since `before`, and
// the time left is by the requests ended so far.
std::string progress_text(const LoadProgress& now, const LoadProgress& before);

// Not thread-safe.
class ProgressLine {
 public:
  // `err` must outlive it. `name` goes before the line, as "rate 2, seed 1"; it may be empty.
  ProgressLine(std::ostream& err, bool terminal, std::string name);
  // Takes the bar away.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  Nanos period() const;
  void show(const LoadProgress& progress);

 private:
  std::ostream& err_;
  const bool terminal_;
  const std::string name_;
  LoadProgress before_;
};

}  // namespace kvasir
