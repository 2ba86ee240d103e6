// The flags that make an instance a member of a cluster, for `serve` and `gmanager`.
#pragma once

#include "runtime/cluster_options.h"

namespace CLI {
class App;
}

namespace kvasir {

// The files of TLS in the cluster.
void add_cluster_tls_flags(CLI::App& app, ClusterTlsFiles& files);
// The flags of every member.
void add_member_flags(CLI::App& app, ClusterOptions& flags, bool required);
// These, and the flags of a member that runs a model.
void add_cluster_flags(CLI::App& app, ClusterOptions& flags);

}  // namespace kvasir
