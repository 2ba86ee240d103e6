// The options of an instance's place in a cluster.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cluster/tls/cluster_tls.h"

namespace kvasir {

struct ClusterOptions {
  std::string directory;  // "etcd://host:2379[/cluster]"; empty: the instance is in no cluster
  std::string name;       // of this instance; empty: that in its certificate, or host name and process id
  ClusterTlsFiles tls_files;
  std::shared_ptr<ClusterTls> tls;  // of tls_files, read by complete_cluster_options(); null: no TLS
  std::string listen = "127.0.0.1:0";
  std::string advertise_host;  // empty: that of `listen`
  std::string location;        // "zone/rack/host"; empty: the host's name
  int64_t ttl_s = 5;
  uint64_t lend_bytes = UINT64_MAX;    // UINT64_MAX: half of the KV cache's memory
  uint64_t borrow_bytes = UINT64_MAX;  // UINT64_MAX: four times the KV cache's memory
  double lend_compute = 0.5;
  std::string fetch = "cost";  // never | cost | always
  // What becomes of prefixes that peers have: never | fetch | attend | cost.
  std::string prefixes = "never";
  // When peers compute the rows of a prompt whose K and V go to them: never | cost | always.
  std::string prompts = "never";

  // Where clients reach it, and where it serves its status; filled in by the server.
  std::string http_address, status_address;
  bool on() const { return !directory.empty(); }
};

}  // namespace kvasir
