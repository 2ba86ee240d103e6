// How much of its compute a creditor gives to its peers: a share of the time, as a token bucket of
// seconds.
#pragma once

#include "base/clock.h"

namespace kvasir {

// The bucket fills by `share` seconds per second and thread up to `burst`, and the time of work drains it.
// Work may begin while the level is above 0, so one piece of work may overdraw it; the next one waits until
// the deficit is filled. Not thread-safe.
class ComputeBudget {
 public:
  // share: 0 (nothing is given) .. 1 (all that the threads can do). REQUIRES: threads > 0, burst >= 0
  ComputeBudget(double share, int threads, Nanos burst, Nanos now);

  void set_share(double share, Nanos now);
  double share() const { return share_; }
  void spend(Nanos worked, Nanos now);
  // When work may begin: `now` or later; INT64_MAX if nothing is given.
  Nanos ready_at(Nanos now) const;
  // When `work` more would be done after the work that is owed, at the rate of the share.
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
