// A simulated run as `kvasir bench` knows runs: the same figures, curves and files, and what only the engine
// can tell beside them.
#pragma once

#include "bench/config.h"
#include "bench/result_file.h"
#include "simulate/simulation.h"

namespace kvasir {

RunResult run_result(const RunKey& key, SimulationOutcome outcome, const BenchConfig& config);

}  // namespace kvasir
