// Chooses, of jobs for one machine, as many as can be in time.
//
// Source: Moore, "An n job, one machine sequencing algorithm for minimizing the number of late jobs",
// Management Science 15 (1968), in Hodgson's form: go through the jobs by due time; whenever the sum of the
// sizes kept exceeds the due time of the latest, drop the largest. No other choice keeps more.
//
//   symbol   here              unit
//   p_i      TimedJob::size_s  seconds of the machine
//   d_i      TimedJob::due_s   seconds from now; may be negative, or infinite
//   w_i      TimedJob::weight  what it is worth to have it in time
//
// With weights the choice of the greatest worth is hard (Karp 1972); here the one that is dropped is that of
// the largest size for its worth, and more are dropped where that was not enough. For equal weights this is
// the algorithm above.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir {

struct TimedJob {
  double size_s = 0;
  double due_s = 0;
  double weight = 1;  // above 0

  double size_for_worth() const { return size_s / weight; }
};

// Indices into the jobs.
struct OnTimeChoice {
  std::vector<uint32_t> kept;     // by due time, ties by index
  std::vector<uint32_t> dropped;  // in the order in which they were dropped
};

// O(n log n). REQUIRES: sizes are at least 0
OnTimeChoice most_on_time(std::span<const TimedJob> jobs);

}  // namespace kvasir
