#include "apps/simulate/cluster_system.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/simulate/catalog/network.h"
#include "sched/registry.h"

namespace kvasir {
namespace {

constexpr uint32_t kMostInstances = 32;
// No instance dies in a simulation: a silent one is in a long step, in which it handles no messages.
constexpr Nanos kBusy = 3600 * kNanosPerSecond;
constexpr Nanos kSettlement = 60 * kNanosPerSecond;
constexpr uint32_t kPromptAsked = 3;  // as a real instance
constexpr Nanos kNever = int64_t{1} << 60;

uint32_t per_node(const SimulateOptions& o) {
  return std::max(1u, o.gpus_per_node / (o.tensor_parallel * o.pipeline_parallel));
}

}  // namespace

bool lends(const SimulateOptions& options, const std::string& policy) {
  const bool shares = policy_traits(policy).borrows || options.runtime.cluster.prefixes != "never";
  return options.instances > 1 && shares;
}

Status check_cluster(const SimulateOptions& o) {
  if (o.instances < 1 || o.instances > kMostInstances) {
    return error(ErrorCode::kInvalidArgument, "--instances {}: take 1 to {}", o.instances, kMostInstances);
  }
  for (const std::string& network : {o.network, o.node_network}) {
    KV_RETURN_IF_ERROR(find_network(network).status());
  }
  if (o.one_queue && o.bench.max_concurrency > 0) {
    return error(ErrorCode::kInvalidArgument,
                 "--max-concurrency: not with --one-queue, which bounds by memory");
  }
  if (o.instances == 1) return {};
  if (o.bench.max_concurrency > 0) {
    return error(ErrorCode::kInvalidArgument,
                 "--max-concurrency: not with --instances; each takes what is sent to it");
  }
  if (!o.runtime.log_plans.empty() || !o.record.empty()) {
    return error(ErrorCode::kInvalidArgument, "{}: needs one instance, not --instances {}",
                 o.record.empty() ? "--log-plans" : "--record", o.instances);
  }
  const bool lend = std::any_of(o.policies.begin(), o.policies.end(),
                                [&](const std::string& policy) { return lends(o, policy); });
  if (lend && o.runtime.kv_offloading_bytes + o.runtime.kv_offloading_disk_bytes > 0) {
    return error(
        ErrorCode::kInvalidArgument,
        "--kv-offloading-size and --kv-offloading-disk-size: simulated instances that lend each other "
        "memory have no tier of their own behind the device; leave them out");
  }
  return {};
}

Result<std::optional<ClusterSetup>> cluster_of(const SimulateOptions& o, const SimulatedSystem& system,
                                               const EngineOptions& engine, const std::string& policy) {
  if (!lends(o, policy)) return std::optional<ClusterSetup>();
  ClusterSetup out;
  out.topology.instances = o.instances;
  out.topology.per_node = per_node(o);
  out.topology.ways = o.pipeline_parallel;
  KV_ASSIGN_OR_RETURN(out.topology.inside, find_network(o.node_network));
  KV_ASSIGN_OR_RETURN(out.topology.between, find_network(o.network));
  const CacheGeometry& g = engine.cache.geometry;
  out.shape.geometry = g;
  out.shape.kv = {g.layers_per_group, system.kv_heads, system.head_dim, g.block_tokens};
  out.shape.queries_per_kv = system.queries_per_kv;
  out.borrowable_cells = engine.cache.borrowable_cells();
  out.attended_cells = engine.cache.attended_cells;
  out.prefix_cells = engine.cache.prefix_cells;
  cluster::ProtocolSettings& p = out.protocol;
  p.lend_cap = static_cast<uint32_t>(o.lend_share * engine.cache.cells(Tier::kDevice));
  p.answer = p.silence = p.entry_lives = kBusy;
  p.recall = from_seconds(o.recall_s);
  p.settle_limit = kSettlement;
  if (!o.settle_debts) p.settle_period = kNever;
  p.lend_to_creditors = o.lend_to_creditors;
  if (engine.peer_prefixes == PeerPrefixUse::kNever) p.prefix_asked = 0;
  p.computes_prompts = engine.peer_prompts != PeerPromptUse::kNever;
  if (p.computes_prompts) p.prompt_asked = kPromptAsked;
  KV_RETURN_IF_ERROR(cluster::check(p));
  return std::optional(std::move(out));
}

std::string describe_cluster(const SimulateOptions& o) {
  if (o.instances == 1) return "";
  return fmt::format("{} instances, {} on a node; {} between nodes, {} inside\n", o.instances,
                     std::min(o.instances, per_node(o)), o.network, o.node_network);
}

}  // namespace kvasir
