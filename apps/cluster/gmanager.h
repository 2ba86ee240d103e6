// `kvasir gmanager`: a member of a cluster that runs no model and stands for election.
#pragma once

#include "runtime/cluster_options.h"

namespace kvasir {

// Runs until SIGTERM or SIGINT. The result and the requirement are those of run_serve().
int run_gmanager(const ClusterOptions& flags);

}  // namespace kvasir
