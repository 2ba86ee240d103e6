// Forecasts how many cells of the device will be free over the coming stages.
//
// Source: LayerKV, Section 3.1.1, Equation 5,
//
//   Avail(t + 1) = Avail(t) + Released(t) - Allocated(t).
//
//   symbol      here                                                                                 unit
//   t           a stage: as many decode steps as a block has tokens                                   -
//   Avail(0)    available now, or once the steps and transfers in flight have ended                   cells
//   Released    cells held only by requests that are expected to end: at the median of the
//               predicted class; a longer one is not expected to end                                  cells
//   Allocated   the blocks that sequences on the device begin, by their lengths; a sequence larger
//               than the device, which decodes from the slower tier, counts as one block              cells
//
// Our reading: the paper counts a block for each sequence and stage. With stages of a block's tokens, that is
// the average need of a sequence that decodes in every step. Here it is counted by the length of each, which
// is exact. Prefills are not counted: the caller decides on them. A cell is a block of one layer group.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"
#include "sched/mechanisms/rest_of_output.h"

namespace kvasir {

// Cells of the blocks that a sequence on the device begins within `stages` stages, if it runs for so long.
uint32_t cells_begun(const View& view, const SeqView& seq, uint32_t stages);

class AvailabilityForecast {
 public:
  // stages: the length of the forecast; at least 1. survival: a sequence ends after the mean of what is left
  // of those that live so long; null: at the median, as above.
  AvailabilityForecast(const View& view, const PlanBuilder& builder, uint32_t stages,
                       const RestOfOutput* survival = nullptr);

  // Cells free at the beginning of stage t; negative: cells are missing. REQUIRES: t <= stages
  int64_t available(uint32_t t) const { return available_[t]; }
  // The minimum over all stages: cells that the present sequences will not need. Cells released in a stage
  // may come too late for those allocated in it.
  int64_t least() const { return least_; }

 private:
  std::vector<int64_t> available_;
  int64_t least_ = 0;
};

}  // namespace kvasir
