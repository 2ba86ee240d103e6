// How long decodes may wait in one step, as rows of prefill beside them: from measured step times.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_set>

#include "base/clock.h"
#include "contract/step.h"

namespace kvasir {

// Every sequence of the step waits for a transfer, or for a peer. A wait of one of its slices is all of its
// sequence's: they leave the step together.
inline bool all_wait(const Step& step) {
  std::unordered_set<SeqId> waiting;
  for (const TransferWait& w : step.waits) waiting.insert(step.slices[w.slice].seq);
  for (const RemoteLeaves& r : step.remote) waiting.insert(step.slices[r.slice].seq);
  return std::all_of(step.slices.begin(), step.slices.end(),
                     [&](const StepSlice& s) { return waiting.contains(s.seq); });
}

// Used by one thread.
class StallBudget {
 public:
  // A bound of 0 is none.
  explicit StallBudget(Nanos most) : most_(most) {}

  Nanos most() const { return most_; }

  // A step of so many rows of prefill (or recomputation) and decode took `time`, waits for transfers aside.
  void observe(uint32_t prefill_rows, uint32_t decode_rows, Nanos time) {
    if (prefill_rows == 0) {
      if (decode_rows > 0) decode_ns_ = mean(decode_ns_, static_cast<double>(time));
      return;
    }
    // What the decodes beside them took is not the prefill's; a row takes no less than a tenth of its share.
    const double whole = static_cast<double>(time);
    const double rest = decode_rows > 0 ? std::max(whole - decode_ns_, whole / 10) : whole;
    row_ns_ = mean(row_ns_, rest / prefill_rows);
  }

  // Rows of prefill that fit beside decodes, at least kFewest. 0: no bound, or nothing has been measured.
  uint32_t prefill_rows() const {
    if (most_ == 0 || row_ns_ == 0) return 0;
    const double rows = (static_cast<double>(most_) - decode_ns_) / row_ns_;
    return static_cast<uint32_t>(std::clamp(rows, double{kFewest}, 1e6));
  }

 private:
  static constexpr uint32_t kFewest = 16;
  // Exponential, over about the last eight; the first value as it is.
  static double mean(double old, double value) { return old == 0 ? value : old + (value - old) / 8; }

  const Nanos most_;
  double decode_ns_ = 0;  // of a step that only decodes
  double row_ns_ = 0;     // of a row of prefill
};

}  // namespace kvasir
