// `kvasir gmanager`: stands for election, and lends and borrows nothing.
#include "apps/cluster/gmanager.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>

#include "apps/flags/cluster_flags.h"
#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "apps/serve/signals.h"
#include "base/log.h"
#include "runtime/join_cluster.h"
#include "server/server.h"

namespace kvasir {
namespace {

// The longest time until a signal is noticed. A message from a peer wakes the loop earlier.
constexpr auto kLookForSignals = std::chrono::milliseconds(50);

class NoCells final : public LendableCells {
 public:
  std::vector<Frame> take(uint32_t) override { return {}; }
  void give_back(std::span<const Frame>) override {}
  uint32_t free_cells() const override { return 0; }
  uint32_t total_cells() const override { return 0; }
};

ModelService service_of(const JoinedCluster& joined) {
  ModelService service;
  service.outside_metrics = [&joined] { return cluster_metrics(joined); };
  service.cluster_status = [node = joined.node.get()] { return node->status_text(); };
  service.unready = [node = joined.node.get()] {
    return node->is_member() ? ""
                             : "this manager has lost its place in the cluster; it joins again by itself";
  };
  return service;
}

Status manage(GManagerOptions options) {
  ClusterOptions& flags = options.cluster;
  KV_RETURN_IF_ERROR(complete_cluster_options(flags));
  const LogThread log_thread;
  Signals signals([&] {
    const Status read = flags.tls ? flags.tls->reload(flags.name) : Status();
    if (!read.ok()) log_error("SIGHUP: the old certificates stay in use: {}", read.message());
  });
  const MonotonicClock clock;
  std::mutex mutex;
  std::condition_variable changed;
  bool woken = false;
  std::unique_ptr<Server> server;
  ServerOptions http;
  http.host = options.admin_host;
  http.port = options.admin_port;
  http.operators_only = true;
  http.model_names = {"none"};
  http.version = KVASIR_VERSION;
  KV_ASSIGN_OR_RETURN(server, Server::start(http));
  flags.status_address = url_at(server->url(), flags.advertise_host);
  KV_ASSIGN_OR_RETURN(const JoinedCluster joined, join_cluster(flags, /*model=*/nullptr, clock));
  cluster::ClusterNode* const node = joined.node.get();
  node->set_wake([&] {
    std::lock_guard lock(mutex);
    woken = true;
    changed.notify_one();
  });
  server->serve(service_of(joined));
  signals.ready();
  fmt::print("stands for gManager of {} as '{}'; its status: {}/cluster/status\n", flags.directory,
             node->status().self.instance, flags.status_address);
  std::fflush(stdout);
  NoCells cells;
  while (signals.count() == 0) {
    node->turn({}, cells);
    std::unique_lock lock(mutex);
    changed.wait_for(lock, kLookForSignals, [&] { return woken; });
    woken = false;
  }
  node->set_wake({});
  server->stop(0);
  return {};
}

}  // namespace

void add_gmanager_flags(CLI::App& app, GManagerOptions& options) {
  add_member_flags(app, options.cluster, /*required=*/true);
  app.add_option("--admin-port", options.admin_port,
                 "Port for operators, without keys and without TLS: /livez, /readyz, /health, /metrics, "
                 "/cluster/status; 0: any free one")
      ->check(between(0, 65535))
      ->capture_default_str();
  app.add_option("--admin-host", options.admin_host, "Address of the admin port")->capture_default_str();
}

int run_gmanager(const GManagerOptions& options) {
  const Status status = manage(options);
  return status.ok() ? 0 : report_failure("gmanager", status.message());
}

}  // namespace kvasir
