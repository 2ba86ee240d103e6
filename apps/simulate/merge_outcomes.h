// What the instances of a run did, as one outcome.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/simulation.h"

namespace kvasir {

// goes_to: the instance of each request, whose records come back in that order. Sums are of all instances; a
// mean is over all that it is a mean of. Of one instance it is its own. REQUIRES: there is one
SimulationOutcome merge_outcomes(std::vector<SimulationOutcome> each, const std::vector<uint32_t>& goes_to);

}  // namespace kvasir
