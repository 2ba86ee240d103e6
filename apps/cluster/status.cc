#include "apps/cluster/status.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/cluster/report.h"
#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "base/clock.h"
#include "cluster/membership/cluster_keys.h"
#include "cluster/membership/etcd_address.h"

namespace kvasir {
namespace {

Status print_cluster(const ClusterStatusOptions& options) {
  const Result<EtcdAddress> address = parse_etcd_address(options.directory);
  if (!address.ok()) return error(address.status().code(), "--cluster: {}", address.status().message());
  const Result<ClusterContents> contents = read_cluster(*address, from_seconds(options.timeout_s));
  if (!contents.ok()) {
    return error(contents.status().code(), "--cluster {}: {}", options.directory,
                 contents.status().message());
  }
  const ClusterReport report = report_of(address->cluster, *contents);
  if (options.json) {
    fmt::print("{}\n", to_json(report));
  } else {
    fmt::print("{}", to_table(report));
  }
  return {};
}

}  // namespace

void add_cluster_status_flags(CLI::App& app, ClusterStatusOptions& options) {
  app.add_option("--cluster", options.directory,
                 "Directory of the cluster, etcd://HOST:2379[,HOST:2379][/NAME]: as for serve")
      ->required();
  app.add_flag("--json", options.json, "One JSON document, rather than tables");
  app.add_option("--timeout", options.timeout_s, "Seconds that an etcd endpoint may take for an answer")
      ->check(between(0.01, 3600.0))
      ->capture_default_str();
}

int run_cluster_status(const ClusterStatusOptions& options) {
  const Status status = print_cluster(options);
  return status.ok() ? 0 : report_failure("cluster status", status.message());
}

}  // namespace kvasir
