// Merges the outcomes of a run's instances into one.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/simulate/simulation.h"

namespace kvasir {

// goes_to: the instance of each request; the records come in the order of the requests. Sums are over all
// instances; a mean is over all requests or steps of all instances. The outcome of a single instance stays as
// it is. REQUIRES: there is at least one
SimulationOutcome merge_outcomes(std::vector<SimulationOutcome> each, const std::vector<uint32_t>& goes_to);

}  // namespace kvasir
