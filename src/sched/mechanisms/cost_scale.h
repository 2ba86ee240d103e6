// One factor by which all beliefs on times are wrong, where they have not learnt yet, or do not: those of
// another machine, say.
//
// Measured over believed time of the last 64 steps or so. Up to a factor of 4 it is left to the margins of
// single steps (StepMargins), whose ratios end at 33; beyond, costs are multiplied by it, until they are
// wrong by a factor of 4 again. Prices, credits and what is left of a bound are sums of believed times, which
// no margin corrects. Costs of links are multiplied, too; where beliefs learn and links are measured, they
// are wrong by the factor until the 256th step.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace kvasir {

// Takes the time from a plan to the next for what a step takes, as LongestStep does. Deterministic in the
// calls.
class CostScale {
 public:
  // Called when a plan is made, at `now`. steps_seen: CostModel::steps_seen; 256 later beliefs have
  // learnt, and the factor is 1.
  // True: the factor has changed.
  bool begin(Nanos now, bool any_run, uint64_t steps_seen);
  // Called when it has been made. believed_s: without the factor; 0 if no time is believed, or it has no
  // rows.
  void end(Nanos now, double believed_s);
  double factor() const { return factor_; }

  std::string save() const;
  Status restore(std::string_view text);

 private:
  Nanos since_ = 0;
  double pending_s_ = 0;  // the believed time of the step that runs; 0: nothing is being measured
  double measured_s_ = 0, believed_s_ = 0;  // sums in which older steps count less
  double steps_ = 0;                        // as many as these sums are worth
  double factor_ = 1;
  uint64_t prior_steps_ = UINT64_MAX;  // of the beliefs at first; UINT64_MAX: not known yet
};

}  // namespace kvasir
