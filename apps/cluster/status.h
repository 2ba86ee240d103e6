// `kvasir cluster status`: the members of a cluster, and the memory that they lend each other.
#pragma once

#include <string>

#include "cluster/tls/cluster_tls.h"

namespace CLI {
class App;
}

namespace kvasir {

struct ClusterStatusOptions {
  std::string directory;  // as ClusterOptions::directory
  ClusterTlsFiles tls_files;
  bool json = false;
  double timeout_s = 2;  // of one call to the directory or to a member
};

void add_cluster_status_flags(CLI::App& app, ClusterStatusOptions& options);

// Prints the report. 0, or 1 after one line on standard error.
int run_cluster_status(const ClusterStatusOptions& options);

}  // namespace kvasir
