// Orders jobs that can all be in time so that they end as early as possible on average.
//
// Source: Smith, "Various optimizers for single-stage production", Naval Research Logistics Quarterly 3
// (1956): from the back, the last place goes to the largest job whose due time allows it, and so on. Of all
// orders in which each job is in time, this one has the least sum of the times at which jobs end. With
// weights it is the largest for its worth (Smith's ratio p_i / w_i), and the sum is a weighted one; then the
// order is the best where no due time binds, and else a heuristic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sched/mechanisms/most_on_time.h"

namespace kvasir {

// `by_due`: indices into `jobs`, by due time. Returns the same indices, the first to run first. Where no job
// may be last, since all cannot be in time, the one that is due last is. O(n log n).
std::vector<uint32_t> least_mean_wait(std::span<const TimedJob> jobs, std::span<const uint32_t> by_due);

}  // namespace kvasir
