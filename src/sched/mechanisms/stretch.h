// Due times for requests that state no bound.
//
//   d = arrival + S e
//
// e is the time that the request would take alone at the current time of a step, or the mean one would where
// that is longer (else the shortest, which wait for others to end, would decide alone), and S a stretch that
// all share: the least power of two at which, as it is believed, all can be in time. Within these due times
// the shortest go first (mechanisms/least_mean_wait.h): the mean latency is small, and no request takes
// longer than S e, at most twice the least stretch possible. So in overload all slow down in proportion to
// their size.
//
// Source: stretch as the measure is Bender, Chakrabarti, Muthukrishnan, "Flow and stretch metrics for
// scheduling continuous job streams", SODA 1998; the powers of two are ours.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace kvasir {

class Stretch {
 public:
  double factor() const { return factor_; }
  // Once for each plan in which requests without bounds wait. dropped: not all of them can be in time.
  // most: the factor is not doubled beyond it.
  void observe(bool dropped, double most);

  std::string save() const;
  Status restore(std::string_view text);

 private:
  double factor_ = 1;
  uint32_t quiet_ = 0;  // plans since the last change in which all could be in time
};

}  // namespace kvasir
