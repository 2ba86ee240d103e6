// `kvasir cluster status`: who is in a cluster, and who has how much of whose memory.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace kvasir {

struct ClusterStatusOptions {
  std::string directory;  // as ClusterFlags::directory
  bool json = false;
  double timeout_s = 2;  // of one call to the directory
};

void add_cluster_status_flags(CLI::App& app, ClusterStatusOptions& options);

// Prints it; the exit code.
int run_cluster_status(const ClusterStatusOptions& options);

}  // namespace kvasir
