// Several instances of a simulated system, as the flags say.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "simulate/sim_cluster.h"
#include "simulate/simulate.h"
#include "simulate/system.h"

namespace kvasir {

// Whether under this policy instances lend each other memory: there are several, and it asks for it.
bool lends(const SimulateOptions& options, const std::string& policy);

// One line names the flag at fault, or lists the networks that there are.
Status check_cluster(const SimulateOptions& options);

// Nothing where they do not lend. `engine` is that of engine_of() for the policy. As above.
Result<std::optional<ClusterSetup>> cluster_of(const SimulateOptions& options, const SimulatedSystem& system,
                                               const EngineOptions& engine, const std::string& policy);

// For people: how many there are and how they stand; empty where there is one.
std::string describe_cluster(const SimulateOptions& options);

}  // namespace kvasir
