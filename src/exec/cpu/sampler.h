// Chooses the next token from a row of logits.
#pragma once

#include <span>

#include "contract/step.h"
#include "ops/cpu/kernels.h"

namespace kvasir {

// The token for `position` (the index that it will have in the sequence). A pure function of its arguments:
//   temperature 0: the largest logit; ties go to the smaller id.
//   otherwise p_i ~ exp((l_i - max) / T), of the top_k most likely, of those the smallest set whose mass
//   reaches top_p; drawn by inverse transform at random_unit(seed, 0, position). Candidates are ordered by
//   logit, ties by id; a NaN counts as -infinity.
// Before params.forced_end the end token is left out, as if its logit were -infinity, and at that position it
// comes. Log-probabilities are those of the full distribution at temperature 1, whatever is forced.
// `seq` is copied into the result. Thread-safe. REQUIRES: logits is not empty; a
// forced end token is one of at least two.
SampledToken sample(const ops::Kernels& kernels, std::span<const float> logits, const SamplingParams& params,
                    uint32_t position, SeqId seq);

}  // namespace kvasir
