// The masks of a step's constrained slices.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "contract/step.h"
#include "exec/step_transfers.h"

namespace kvasir {

class TokenMasks {
 public:
  // Waits for the masks of constrained slices that sample. A slice whose mask is not there in time leaves the
  // step, so that others do not wait for it. True: some did.
  bool await(const Step& step, StepTransfers& transfers);
  // Null: the slice is not constrained.
  const TokenMask* of(uint32_t slice) const { return masks_.empty() ? nullptr : masks_[slice]; }

 private:
  // So long a step waits at most for masks. They are made while it runs, so they are late only where the
  // machine is overloaded or a grammar is slow.
  static constexpr Nanos kPatience = 5 * kNanosPerMilli;

  std::vector<const TokenMask*> masks_;  // empty: nothing is constrained
};

}  // namespace kvasir
