// Parts of the command line of `kvasir simulate`, for commands that share them.
#pragma once

#include "apps/simulate/simulate.h"

namespace kvasir {

void add_system_flags(CLI::App& app, SimulateOptions& options);   // model, device, memory
void add_cluster_flags(CLI::App& app, SimulateOptions& options);  // instances and networks
// Cache, batches, the policies' beliefs, and the requests.
void add_setting_flags(CLI::App& app, SimulateOptions& options);
void add_policy_flag(CLI::App& app, SimulateOptions& options);         // --scheduling-policy
void add_request_limit_flag(CLI::App& app, SimulateOptions& options);  // --max-tokens

}  // namespace kvasir
