// A policy that relies on belief as far as it can, for tests of what happens where that is wrong.
#pragma once

#include <memory>

#include "contract/policy.h"

namespace kvasir::test {

// Cuts prompts so that a step is believed to take no longer than a bound; admits by predicted length, the
// shortest first, while what is predicted fits; preempts the one predicted to stay longest, by swapping or by
// recomputation, whichever is believed to be cheaper. It has no state.
std::unique_ptr<Policy> make_belief_policy();

}  // namespace kvasir::test
