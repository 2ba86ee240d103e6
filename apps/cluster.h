// What makes an instance a member of a cluster: `--cluster` and its flags, for `serve` and `gmanager`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/cluster_flags.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/node/cluster_node.h"
#include "cluster/transport/cluster_transport.h"
#include "server/metrics_text.h"

namespace CLI {
class App;
}

namespace kvasir {

// Those of every member.
void add_member_flags(CLI::App& app, ClusterFlags& flags, bool required);
// And those of one that runs a model.
void add_cluster_flags(CLI::App& app, ClusterFlags& flags);

// Checks them, and fills in what they leave open: names, the token from its file, and, as numbers, the host
// by which peers reach it. An error is one line that names the flag.
Status complete_cluster_flags(ClusterFlags& flags);

// What an instance that runs a model brings with it.
struct ClusterModel {
  std::string numerics_id;
  std::string geometry;  // the digest that peers compare
  cluster::NodeMemory memory;
  uint32_t borrowable_cells = 0;
  uint32_t lend_cap_cells = 0;
};

// An instance's place in its cluster.
struct JoinedCluster {
  std::unique_ptr<cluster::ClusterNode> node;   // null: it is in none
  const ClusterTransport* transport = nullptr;  // the node's
};

// Joins. `model` null: only to stand for gManager. The clock outlives the node. An error is one line that
// names the flag. REQUIRES: complete_cluster_flags(flags) has succeeded
Result<JoinedCluster> join_cluster(const ClusterFlags& flags, const ClusterModel* model, const Clock& clock);

// What /metrics shows of it. REQUIRES: joined.node
std::vector<OutsideMetric> cluster_metrics(const JoinedCluster& joined);

// `kvasir gmanager`: stands for election until SIGTERM or SIGINT. As run_serve().
int run_gmanager(const ClusterFlags& flags);

}  // namespace kvasir
