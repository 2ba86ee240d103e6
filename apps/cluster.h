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
#include "server/metrics_text.h"

namespace CLI {
class App;
}

namespace kvasir {

// Those of every member.
void add_member_flags(CLI::App& app, ClusterFlags& flags, bool required);
// And those of one that runs a model.
void add_cluster_flags(CLI::App& app, ClusterFlags& flags);

// What an instance that runs a model brings with it.
struct ClusterModel {
  std::string numerics_id;
  std::string geometry;  // the digest that peers compare
  cluster::NodeMemory memory;
  uint32_t borrowable_cells = 0;
  uint32_t lend_cap_cells = 0;
};

// Joins. `model` null: only to stand for gManager. The clock outlives the node. An error is one line that
// names the flag.
Result<std::unique_ptr<cluster::ClusterNode>> join_cluster(ClusterFlags flags, const ClusterModel* model,
                                                           const Clock& clock);

// What /metrics shows of the instance's place in its cluster.
std::vector<OutsideMetric> cluster_metrics(const cluster::ClusterNode& node);

// `kvasir gmanager`: stands for election until SIGTERM or SIGINT. As run_serve().
int run_gmanager(const ClusterFlags& flags);

}  // namespace kvasir
