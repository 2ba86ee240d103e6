#include "sched/mechanisms/prefill_time.h"

namespace kvasir {

uint32_t prefill_rows_within(const CostModel& costs, const StepWork& work, double seconds, uint32_t history,
                             uint32_t most) {
  const auto fits = [&](uint32_t rows) {
    StepWork all = work;
    all.add_prefill(history, rows);
    return costs.step_seconds(all) < seconds;
  };
  if (most == 0 || fits(most)) return most;
  uint32_t least = 0;  // which fits, or is none at all
  while (most - least > 1) {
    const uint32_t middle = least + (most - least) / 2;
    (fits(middle) ? least : most) = middle;
  }
  return least;
}

}  // namespace kvasir
