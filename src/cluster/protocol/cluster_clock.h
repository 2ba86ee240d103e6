// The time by which requests of all instances are put in order. Clocks of instances have nothing in common
// but their pace. The fastest is taken: an instance that hears a later time than its own goes on from there.
// So all agree, but for how long the quickest message between them is on its way; a clock that runs slower is
// pulled along.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace kvasir::cluster {

class ClusterClock {
 public:
  // Far from where sums and differences of a few of them end: peers may say anything.
  static constexpr Nanos kMostTime = INT64_MAX / 8;
  static Nanos time_of(int64_t told) { return std::clamp<Nanos>(told, -kMostTime, kMostTime); }

  // A peer says that it is `told` now. No clock shows a time that is out of all reason: it is not followed.
  void hear(int64_t told, Nanos now) {
    if (told > -kMostTime / 2 && told < kMostTime / 2) ahead_ = std::max(ahead_, told - time_of(now));
  }
  // The cluster's time when this instance's clock shows `own`, and the other way round.
  Nanos of(Nanos own) const { return time_of(own) + ahead_; }
  Nanos own(Nanos time) const { return time - ahead_; }

  Nanos ahead() const { return ahead_; }

 private:
  Nanos ahead_ = 0;  // of this instance's clock
};

}  // namespace kvasir::cluster
