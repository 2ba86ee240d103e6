// Bounds on how long one step may delay decodes: by transfers and peers, and by prefill in the same step.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "contract/link.h"
#include "contract/step.h"

namespace kvasir {

// Whether every sequence of the step waits for a transfer or for a peer. A sequence waits if any of its
// slices does: they leave the step together.
bool all_wait(const Step& step);

// Step::max_stall of a step. If all its sequences wait for something, it waits as long as a working link and
// answering peers may take. Otherwise it waits at most `max_decode_stall` (0: no bound), because the other
// sequences wait with it. link: null if there is none.
Nanos max_stall_of(const Step& step, const Link* link, Nanos max_decode_stall);

// Measures how many rows of prefill a step may run beside decodes. Used by one thread.
class StallBudget {
 public:
  // The longest wait; 0: no bound.
  explicit StallBudget(Nanos most) : most_(most) {}

  Nanos most() const { return most_; }

  // A step with these numbers of rows of prefill (or recomputation) and of decode took `time`, without waits
  // for transfers.
  void observe(uint32_t prefill_rows, uint32_t decode_rows, Nanos time) {
    if (prefill_rows == 0) {
      if (decode_rows > 0) decode_ns_ = mean(decode_ns_, static_cast<double>(time));
      return;
    }
    // Subtract the time of the decodes. A row takes at least a tenth of its share of the whole.
    const double whole = static_cast<double>(time);
    const double rest = decode_rows > 0 ? std::max(whole - decode_ns_, whole / 10) : whole;
    row_ns_ = mean(row_ns_, rest / prefill_rows);
  }

  // Rows of prefill that fit in a step with decodes, at least kFewest. 0: there is no bound, or nothing was
  // measured.
  uint32_t prefill_rows() const {
    if (most_ == 0 || row_ns_ == 0) return 0;
    const double rows = (static_cast<double>(most_) - decode_ns_) / row_ns_;
    return static_cast<uint32_t>(std::clamp(rows, double{kFewest}, 1e6));
  }

 private:
  static constexpr uint32_t kFewest = 16;
  // An exponential mean over about the last eight values, starting with the first.
  static double mean(double old, double value) { return old == 0 ? value : old + (value - old) / 8; }

  const Nanos most_;
  double decode_ns_ = 0;  // the time of a step that only decodes
  double row_ns_ = 0;     // the time of a row of prefill
};

}  // namespace kvasir
