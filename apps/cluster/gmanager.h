// `kvasir gmanager`: a member of a cluster that runs no model and stands for election.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/cluster_options.h"

namespace CLI {
class App;
}

namespace kvasir {

struct GManagerOptions {
  ClusterOptions cluster;
  // Of the port that says how it is: what the admin port of serve has, but for /admin/drain.
  std::string admin_host = "127.0.0.1";
  uint16_t admin_port = 0;  // 0: any free one
};

void add_gmanager_flags(CLI::App& app, GManagerOptions& options);

// Runs until SIGTERM or SIGINT. The result and the requirement are those of run_serve().
int run_gmanager(const GManagerOptions& options);

}  // namespace kvasir
