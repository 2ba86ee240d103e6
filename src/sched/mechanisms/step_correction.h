// By how much measured steps differ from what was foretold of them.
//
// Source: eLLM, Sections 3.1 and 6.6: a closed loop refines what is chosen by what is measured. The paper
// does not say how. Here the foretold time of a step is multiplied by the mean of measured over foretold, of
// which the last step counts a tenth.
#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace kvasir {

// Takes the time from a plan to the next for what a step takes, as LongestStep does. Deterministic in the
// calls.
class StepCorrection {
 public:
  // When a plan is made at `now`.
  void begin(Nanos now);
  // What it was foretold; 0: nothing, or it has no rows.
  void end(Nanos now, double foretold_s);
  double factor() const { return factor_; }

  std::string save() const;
  Status restore(std::string_view text);

 private:
  Nanos since_ = 0;
  double foretold_s_ = 0;
  double factor_ = 1;
};

}  // namespace kvasir
