// How much of its compute a creditor gives to others: a share of the time, as a bucket of seconds.
#pragma once

#include "base/clock.h"

namespace kvasir {

// Fills by `share` seconds per second and thread up to `burst`, and empties by the time that is worked. Work
// may begin while there is something in it, so one piece of work may run it into debt, which the next one
// waits for. Not thread-safe.
class ComputeBudget {
 public:
  // share: 0 (nothing is given) .. 1 (all that the threads can do). REQUIRES: threads > 0, burst >= 0
  ComputeBudget(double share, int threads, Nanos burst, Nanos now);

  void set_share(double share, Nanos now);
  double share() const { return share_; }
  void spend(Nanos worked, Nanos now);
  // When work may begin: `now` or later; INT64_MAX if nothing is given.
  Nanos ready_at(Nanos now) const;
  // When `work` more, behind what is owed, would be done: it passes at the share.
  Nanos done_at(Nanos work, Nanos now) const;

 private:
  double filled(Nanos now) const;

  const int threads_;
  const double burst_s_;
  double share_;
  double level_s_;  // at since_; below 0: owed
  Nanos since_;
};

}  // namespace kvasir
