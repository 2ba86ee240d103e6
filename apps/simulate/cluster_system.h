// From flags to several instances of a simulated system.
#pragma once

#include <optional>
#include <string>

#include "apps/simulate/sim_cluster.h"
#include "apps/simulate/simulate.h"
#include "apps/simulate/system.h"
#include "base/status.h"
#include "engine/engine.h"

namespace kvasir {

// Whether instances lend each other memory: there are several, and the policy borrows, or prefixes are
// shared.
bool lends(const SimulateOptions& options, const std::string& policy);

// An error is one line that names the flag at fault, or lists the known networks.
Status check_cluster(const SimulateOptions& options);

// Nothing if instances do not lend. `engine`: the result of engine_of() for the policy. Errors as above.
Result<std::optional<ClusterSetup>> cluster_of(const SimulateOptions& options, const SimulatedSystem& system,
                                               const EngineOptions& engine, const std::string& policy);

// For people: the number of instances and their networks; empty for one instance.
std::string describe_cluster(const SimulateOptions& options);

}  // namespace kvasir
