// By how much steps take longer than believed, and how much of that a plan should allow for.
//
// Of the last few hundred steps the ratios measured / believed are kept as a histogram, one for each range of
// prompt rows, since beliefs err differently there. A step that is planned to end within a bound L by
// dividing L by a margin x exceeds it with the probability P(ratio > x). A request whose every gap counts
// passes `steps` steps, so it meets its bound with (1 - P)^steps; and of each step a part `fixed` T0 is there
// whatever the plan does, so the useful part is 1 - x T0 / L. The margin is the x that maximises
//
//   (1 - P(ratio > x))^steps min(1 - x T0 / L, needed)
//
// - what comes out of the device in time. More of the time than `needed` is of no use, so a margin that
// leaves as much costs nothing: it is at least 1.5 then, whatever has been seen, since beliefs are few at
// first, and a single step that is too long makes all late that it holds. Neither the greatest ratio seen,
// which on a machine that others disturb leaves nothing to plan with, nor a fixed quantile, which is wrong
// either where gaps are tight or where they are loose. The formula is ours; FairBatching (arXiv 2510.14392)
// has the budget of time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace kvasir {

// As a number of prompt rows: steps with any number of them, as they have been.
constexpr double kAnyRows = -1;

// Takes the time from a plan with rows to the next plan for what the step takes, as LongestStep does.
// Deterministic in the calls.
class StepMargins {
 public:
  StepMargins();

  // Called when a plan is made, at `now`. Where nothing runs, the last step may have ended long ago.
  void begin(Nanos now, bool any_run);
  // Called when it has been made. believed_s: 0 if no time is believed, or it has no rows.
  void end(Nanos now, double prefill_rows, double believed_s);

  // The margin above; at least the least ratio that is kept. fixed_share: T0 / L. steps: at least 1. needed:
  // a share of the time.
  double priced(double prefill_rows, double fixed_share, double steps, double needed = 1) const;
  // Exceeded by a share 1 - q of the steps.
  double quantile(double prefill_rows, double q) const;
  double mean(double prefill_rows) const;

  std::string save() const;
  Status restore(std::string_view text);

 private:
  static constexpr uint32_t kBins = 256;
  // Of no prompt rows, and of less than 64, 256, 1,024, and more; and of all steps.
  static constexpr uint32_t kRanges = 6;
  struct Histogram {
    std::array<double, kBins> weight{};
    double total = 0;
    void add(uint32_t bin);
  };
  static uint32_t range_of(double prefill_rows);
  static uint32_t bin_of(double ratio);
  // The greatest ratio of a bin.
  static double top_of(uint32_t bin);
  const Histogram& of(double prefill_rows) const { return ranges_[range_of(prefill_rows)]; }

  Nanos since_ = 0;
  double believed_s_ = 0;  // 0: nothing is being measured
  uint32_t range_ = 0;
  std::array<Histogram, kRanges> ranges_;
};

}  // namespace kvasir
