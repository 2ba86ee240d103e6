#include "exec/token_masks.h"

#include <algorithm>
#include <span>

namespace kvasir {

bool TokenMasks::await(const Step& step, StepTransfers& transfers) {
  masks_.clear();
  Nanos left = kPatience;
  bool some_left = false;
  for (uint32_t s = 0; s < step.slices.size(); ++s) {
    const StepSlice& slice = step.slices[s];
    if (!slice.samples || !slice.sampling.constraint || transfers.deferred(s)) continue;
    masks_.resize(step.slices.size(), nullptr);
    const std::span<const Token> output = step.history_of(slice).subspan(slice.sampling.prompt_tokens);
    const Nanos before = transfers.stalled();
    transfers.wait_for([&](Nanos patience) {
      masks_[s] = slice.sampling.constraint->after(output, std::min(patience, left));
      return masks_[s] != nullptr;
    });
    left = std::max<Nanos>(0, left - (transfers.stalled() - before));
    if (masks_[s] != nullptr) continue;
    transfers.leave(s, /*lost=*/false);
    some_left = true;
  }
  return some_left;
}

}  // namespace kvasir
