// `kvasir gmanager`: stands for election, and lends and borrows nothing.
#include "apps/cluster/gmanager.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>

#include "apps/flags/runtime_flags.h"
#include "apps/serve/signals.h"
#include "base/log.h"
#include "runtime/join_cluster.h"

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

Status manage(ClusterOptions flags) {
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
  KV_ASSIGN_OR_RETURN(const JoinedCluster joined, join_cluster(flags, /*model=*/nullptr, clock));
  cluster::ClusterNode* const node = joined.node.get();
  node->set_wake([&] {
    std::lock_guard lock(mutex);
    woken = true;
    changed.notify_one();
  });
  signals.ready();
  fmt::print("stands for gManager of {} as '{}'\n", flags.directory, node->status().self.instance);
  std::fflush(stdout);
  NoCells cells;
  while (signals.count() == 0) {
    node->turn({}, cells);
    std::unique_lock lock(mutex);
    changed.wait_for(lock, kLookForSignals, [&] { return woken; });
    woken = false;
  }
  node->set_wake({});
  return {};
}

}  // namespace

int run_gmanager(const ClusterOptions& flags) {
  const Status status = manage(flags);
  return status.ok() ? 0 : report_failure("gmanager", status.message());
}

}  // namespace kvasir
