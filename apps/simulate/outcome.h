// A simulated run in the form of `kvasir bench`: the same figures, curves and files, with further ones that
// only the engine can know.
#pragma once

#include "apps/bench/config.h"
#include "apps/bench/result_file.h"
#include "apps/simulate/simulation.h"

namespace kvasir {

RunResult run_result(const RunKey& key, SimulationOutcome outcome, const BenchConfig& config);

}  // namespace kvasir
