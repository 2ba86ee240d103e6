// The longest recent step.
//
// Source: CacheOpt, Section 3.3.2: T_I^max, the maximum iteration latency historically observed. A step that
// something else delayed would count for ever, so here it is the longest of the last 256 to 512 steps, unless
// all are to count.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace kvasir {

// Takes the time from one plan with rows to the next as the time of a step. Deterministic in the calls.
class LongestStep {
 public:
  explicit LongestStep(bool of_all = false) : of_all_(of_all) {}

  // Called when a plan is made, at `now`. If nothing runs, the last step may have ended long ago.
  void begin(Nanos now, bool any_run);
  // Called when the plan is complete; it may be called again. rows: whether the plan has rows.
  void end(Nanos now, bool rows);
  Nanos longest() const { return now_ > before_ ? now_ : before_; }

  std::string save() const;
  Status restore(std::string_view text);

 private:
  bool of_all_;
  Nanos since_ = 0;   // when the last plan was made, if it had rows; 0: it had none
  Nanos now_ = 0;     // the longest step of the current 256
  Nanos before_ = 0;  // the longest step of the previous 256
  uint32_t counted_ = 0;
};

}  // namespace kvasir
