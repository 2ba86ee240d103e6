// By how much the measured times of steps differ from the predicted ones.
//
// Source: eLLM, Sections 3.1 and 6.6: a closed loop refines the choice by measurements. The paper does not
// say how. Here the predicted time of a step is multiplied by the mean of measured over predicted, in which
// the last step counts a tenth: one mean for steps whose histories are whole on the device, and one for the
// others, since beliefs err differently on staging and recomputing than on decoding. The latter drifts to the
// former while there are no such steps, so that they are tried again.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace kvasir {

enum class StepKind : uint8_t { kWhole, kPartial };

// Takes the time from a plan to the next for what a step takes, as LongestStep does. Deterministic in the
// calls.
class StepCorrection {
 public:
  // Called when a plan is made, at `now`. Where nothing runs, the last step may have ended long ago.
  void begin(Nanos now, bool any_run);
  // Called when it has been made, or again when more is known of it. predicted_s: 0 if no time was predicted,
  // or it has no rows.
  void end(Nanos now, StepKind kind, double predicted_s);
  double factor(StepKind kind) const { return factors_[static_cast<size_t>(kind)]; }

  std::string save() const;
  Status restore(std::string_view text);

 private:
  Nanos since_ = 0;
  StepKind kind_ = StepKind::kWhole;
  double predicted_s_ = 0;
  std::array<double, 2> factors_ = {1, 1};
};

}  // namespace kvasir
