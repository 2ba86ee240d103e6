// The time that orders the requests of all instances. The clocks of instances agree in nothing but their
// pace. The latest clock counts: an instance that hears a later time than its own continues from that time.
// So all agree to within the delay of the fastest message between them; a clock that runs slower is pulled
// along.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace kvasir::cluster {

class ClusterClock {
 public:
  // Sums and differences of a few such times do not overflow, whatever peers send.
  static constexpr Nanos kMostTime = INT64_MAX / 8;
  static Nanos time_of(int64_t told) { return std::clamp<Nanos>(told, -kMostTime, kMostTime); }

  // A peer says that the time is `told`. An implausible time is ignored.
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
