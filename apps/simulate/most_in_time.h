// How much of a set of jobs one device can do in their windows, whatever the schedule.
//
//   max sum x_i   with   sum_i y_ik <= Delta_k,   sum_k y_ik = kappa_i x_i,   0 <= x_i <= 1,
//                        y_ik = 0 outside the window of i
//
//   symbol     here                           unit
//   kappa_i    WindowJob::device_s            seconds of the device
//   Delta_k    a slot of the time             s
//   x_i        the share of i that is done    -
//
// A linear program: jobs may be cut, interrupted and done in part, so no schedule of whole jobs does more.
// The times that jobs can get form a polymatroid (what jobs get whose windows lie in an interval is at most
// its length, for each interval, and that suffices), so the greedy order, the smallest kappa first, each as
// much as the others leave, is optimal (Edmonds 1970; read in textbooks).
#pragma once

#include <cstddef>
#include <vector>

namespace kvasir {

struct WindowJob {
  double from_s = 0;
  double to_s = 0;  // infinite: it is done in any case
  double device_s = 0;
};

// The greatest sum of x. Windows are widened to slots, so the result is never too small: the time from the
// first `from_s` to the last finite `to_s` has so many slots. `devices`: that work at once, each job on any
// of them. O(jobs * slots^2). REQUIRES: from_s <= to_s; slots, devices > 0
double most_in_time(std::vector<WindowJob> jobs, size_t slots, double devices = 1);

}  // namespace kvasir
