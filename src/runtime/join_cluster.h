// Makes an instance a member of a cluster.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/node/cluster_node.h"
#include "cluster/transport/cluster_transport.h"
#include "runtime/cluster_options.h"
#include "server/metrics_text.h"

namespace kvasir {

// Checks the options and fills in those left open: the name, the certificates from their files, and the
// numeric address by which peers reach this host. An error is one line that names the flag.
Status complete_cluster_options(ClusterOptions& flags);

// What an instance that runs a model brings into the cluster.
struct ClusterModel {
  std::string numerics_id;
  std::string geometry;  // the digest that peers compare
  cluster::NodeMemory memory;
  uint32_t borrowable_cells = 0;
  uint32_t attended_cells = 0;  // of prefixes at peers, at once
  uint32_t prefix_cells = 0;    // 0: prefixes are neither copied nor shown
  uint32_t lend_cap_cells = 0;
  bool computes_prompts = false;  // for peers, and has peers do so
};

// An instance's place in its cluster.
struct JoinedCluster {
  std::unique_ptr<cluster::ClusterNode> node;   // null: the instance is in no cluster
  const ClusterTransport* transport = nullptr;  // the node's
};

// Joins the cluster. With a null `model` the instance is only a candidate for gManager. The clock outlives
// the node. An error is one line that names the flag. REQUIRES: complete_cluster_options(flags) has succeeded
Result<JoinedCluster> join_cluster(const ClusterOptions& flags, const ClusterModel* model,
                                   const Clock& clock);

// The URL, with `host` in place of an address such as 0.0.0.0, to which no client can connect.
std::string url_at(std::string url, const std::string& host);

// The cluster's metrics for /metrics. REQUIRES: joined.node
std::vector<OutsideMetric> cluster_metrics(const JoinedCluster& joined);

}  // namespace kvasir
