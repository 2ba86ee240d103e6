// How many cells of the device will be free over the coming stages.
//
// Source: LayerKV, Section 3.1.1, Equation 5,
//
//   Avail(t + 1) = Avail(t) + Released(t) - Allocated(t).
//
//   symbol      here                                                                                 unit
//   t           a stage: as many decode steps as a block has tokens                                   -
//   Avail(0)    available now, and coming when what is in flight has ended                            cells
//   Released    what requests hold alone that are expected to end: at the median of the predicted
//               class; one that has outlived it is not expected to end                                cells
//   Allocated   the blocks that those on the device begin, by their lengths; of one that is larger
//               than the device and decodes from the slower tier one block, whichever it is in     cells
//
// Our reading: the paper takes a block for each sequence and stage. With stages of a block's tokens that is
// what a sequence that decodes in every step needs on average; here it is counted by the length of each,
// which is exact. Prefills are not counted: they are what the caller decides on. A cell is a block of one
// layer group.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// Cells of the blocks that a sequence on the device begins within so many stages, if it goes on for so long.
uint32_t cells_begun(const View& view, const SeqView& seq, uint32_t stages);

class AvailabilityForecast {
 public:
  // stages: how far it looks; at least 1.
  AvailabilityForecast(const View& view, const PlanBuilder& builder, uint32_t stages);

  // Cells free at the beginning of stage t; negative: so many are missing.
  // REQUIRES: t is at most the stages that it looks ahead
  int64_t available(uint32_t t) const { return available_[t]; }
  // The least over all stages: what the sequences that are there will not need. What is released in a stage
  // may come too late for what is allocated in it.
  int64_t least() const { return least_; }

 private:
  std::vector<int64_t> available_;
  int64_t least_ = 0;
};

}  // namespace kvasir
