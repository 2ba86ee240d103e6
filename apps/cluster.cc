#include "apps/cluster.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <utility>

#include "apps/flags.h"
#include "base/file.h"
#include "cluster/membership/etcd_membership.h"
#include "cluster/transport/grpc_transport.h"
#include "cluster/transport/socket_address.h"
#include "cluster/transport/ucx_transport.h"
#include "ops/cpu/isa.h"

namespace kvasir {
namespace {

// Of the messages between instances; a change of any of them is a new version.
constexpr int kWireVersion = 1;
// Cells that are asked of one creditor at a time: so many blocks, of all layers, but no fewer cells than
// that.
constexpr uint32_t kBlocksAtATime = 8;
constexpr uint32_t kFewestCellsAtATime = 64;
constexpr size_t kMaxLocationBytes = 256;

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

Status read_token(ClusterFlags& flags) {
  if (!flags.token_file.empty()) {
    Result<std::string> text = read_file(flags.token_file);
    if (!text.ok()) return error(ErrorCode::kIo, "--cluster-token-file: {}", text.status().message());
    flags.token = *std::move(text);
    flags.token.erase(flags.token.find_last_not_of(" \t\r\n") + 1);
    if (flags.token.empty()) {
      return error(ErrorCode::kInvalidArgument, "--cluster-token-file {}: there is no token in it",
                   flags.token_file);
    }
  }
  if (!flags.token.empty()) return {};
  return error(
      ErrorCode::kInvalidArgument,
      "--cluster needs a secret that all instances share, or whoever reaches one could read and write its "
      "memory: give --cluster-token-file, too");
}

// Names are looked up here: at a peer they may mean something else, or nothing.
Status complete_host(ClusterFlags& flags) {
  const Result<SocketAddress> listen = parse_address(flags.listen, Names::kLookUp);
  if (!listen.ok()) return error(listen.status().code(), "--cluster-listen: {}", listen.status().message());
  std::string& host = flags.advertise_host;
  if (host.empty()) {
    if (listen->is_any()) {
      return error(
          ErrorCode::kInvalidArgument,
          "--cluster-listen {} is no address that peers can reach: give --cluster-advertise-host, too",
          flags.listen);
    }
    host = listen->host();
    return {};
  }
  // What listens on an IPv4 address is not reached by IPv6.
  const int family = listen->storage.ss_family == AF_INET ? AF_INET : AF_UNSPEC;
  const auto found =
      parse_address(host.front() == '[' ? host + ":0" : join_address(host, 0), Names::kLookUp, family);
  if (!found.ok() || found->is_any()) {
    return error(
        ErrorCode::kInvalidArgument,
        "--cluster-advertise-host '{}' is no host that peers can reach: give its {} or a name that is "
        "known here, without a port",
        host, family == AF_INET ? "IPv4 address" : "address");
  }
  host = found->host();
  return {};
}

bool is_location(const std::string& text) {
  return text.size() <= kMaxLocationBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
}

Result<std::unique_ptr<ClusterTransport>> make_transport(const ClusterFlags& flags) {
  TransportOptions options;
  options.self = {flags.name, 0};
  options.token = flags.token;
  options.listen = flags.listen;
  options.advertise_host = flags.advertise_host;
  options.ucx_transports = flags.ucx_transports;
  options.ucx_devices = flags.ucx_devices;
  return flags.transport == "grpc" ? make_grpc_transport(options) : make_ucx_transport(options);
}

Member member_of(const ClusterFlags& flags, const ClusterTransport& transport, const ClusterModel* model) {
  Member m;
  m.id.instance = flags.name;
  m.transport = flags.transport;
  m.transport_version = transport.wire();
  m.wire_version = kWireVersion;
  m.kvasir_version = KVASIR_VERSION;
  m.http_address = flags.http_address;
  if (model == nullptr) return m;
  m.numerics_id = model->numerics_id;
  m.geometry = model->geometry;
  m.lends_memory = model->lend_cap_cells > 0;
  return m;
}

}  // namespace

void add_member_flags(CLI::App& app, ClusterFlags& flags, bool required) {
  CLI::Option* directory = app.add_option("--cluster", flags.directory,
                                          "Directory of the cluster, etcd://HOST:2379[,HOST:2379][/NAME]: "
                                          "instances that share it lend each other "
                                          "memory (default: none, it stands alone)");
  if (required) directory->required();
  app.add_option("--cluster-name", flags.name,
                 "Name of this instance in the cluster (default: host name and process id)");
  app.add_option("--cluster-token", flags.token,
                 "Secret that all instances of the cluster share; other processes can see it here");
  app.add_option("--cluster-token-file", flags.token_file, "File with this secret");
  app.add_option("--cluster-transport", flags.transport,
                 "How instances talk: ucx (TCP, shared memory, InfiniBand) or grpc; the same for all of them")
      ->check(CLI::IsMember({"ucx", "grpc"}))
      ->capture_default_str();
  app.add_option("--cluster-listen", flags.listen, "HOST:PORT for peers; port 0: any free one")
      ->capture_default_str();
  app.add_option(
      "--cluster-advertise-host", flags.advertise_host,
      "Address or name of this host by which peers reach it; names are looked up here (default: that "
      "of --cluster-listen)");
  app.add_option("--cluster-ucx-tls", flags.ucx_transports,
                 "What UCX may use: tcp, or shm,tcp where instances share a machine and its namespaces")
      ->capture_default_str();
  app.add_option("--cluster-ucx-devices", flags.ucx_devices,
                 "Network devices for UCX, as eth0,eth1 (default: that of the address listened on)");
  app.add_option("--cluster-location", flags.location,
                 "Where it is, from the outside in, as ZONE/RACK/HOST: the nearest lend first (default: the "
                 "host's name)");
  app.add_option("--cluster-ttl", flags.ttl_s,
                 "Seconds until an instance that is silent counts as dead; the same for all of them")
      ->check(CLI::Range(2, 600))
      ->capture_default_str();
}

void add_cluster_flags(CLI::App& app, ClusterFlags& flags) {
  add_member_flags(app, flags, /*required=*/false);
  add_gib(app, "--cluster-lend-size", flags.lend_bytes,
          "Of its KV cache, what peers may have at once, in GiB or with a suffix, as 512MiB (default: half)");
  add_gib(app, "--cluster-borrow-size", flags.borrow_bytes,
          "What it may have of peers at once, with a policy that borrows (default: four times its KV cache)");
  app.add_option("--cluster-lend-compute", flags.lend_compute,
                 "Share of one core's time for attention to what peers have here; 0: they fetch it instead")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option(
         "--cluster-fetch", flags.fetch,
         "When keys and values come here rather than the query goes there: never (unless it must be), "
         "cost (where that was measured to be cheaper), always")
      ->check(CLI::IsMember({"never", "cost", "always"}))
      ->capture_default_str();
}

Status complete_cluster_flags(ClusterFlags& flags) {
  const Result<EtcdAddress> directory = parse_etcd_address(flags.directory);
  if (!directory.ok()) return error(directory.status().code(), "--cluster: {}", directory.status().message());
  if (flags.name.empty()) flags.name = fmt::format("{}-{}", host_name(), getpid());
  if (!is_cluster_name(flags.name)) {
    return error(ErrorCode::kInvalidArgument,
                 "--cluster-name '{}': 1 to 64 letters, digits, '.', '_' and '-' make a name", flags.name);
  }
  if (flags.location.empty()) flags.location = host_name();
  if (!is_location(flags.location)) {
    return error(ErrorCode::kInvalidArgument,
                 "--cluster-location '{}': at most {} printable ASCII characters without spaces make one, as "
                 "ZONE/RACK/HOST",
                 flags.location, kMaxLocationBytes);
  }
  KV_RETURN_IF_ERROR(read_token(flags));
  return complete_host(flags);
}

std::vector<OutsideMetric> cluster_metrics(const JoinedCluster& joined) {
  const cluster::NodeStatus s = joined.node->status();
  const TransportStats transport = joined.transport->stats();
  const auto d = [](uint64_t n) { return static_cast<double>(n); };
  return {
      {"cluster_member", "gauge", s.self.epoch != 0 ? 1.0 : 0.0,
       "Whether it is a member of its cluster now."},
      {"cluster_peers", "gauge", d(s.links.size()), "Members with which it can share memory."},
      {"cluster_leads", "gauge", s.leader == s.self.instance ? 1.0 : 0.0, "Whether it is the gManager."},
      {"cluster_directory_down_seconds", "gauge", s.directory_down_s, "For how long etcd has not answered."},
      {"cluster_rejected_frames_total", "counter", d(transport.rejected_frames),
       "What came with another token, for another life, or damaged."},
      {"cluster_refused_links_total", "counter", d(transport.refused_links),
       "Connections that were cut for what came along them, or for want of room."},
      {"remote_queries_total", "counter", d(s.borrowed.queries), "Queries answered by peers."},
      {"remote_query_bytes_total", "counter", d(s.borrowed.query_bytes + s.borrowed.query_extra_bytes),
       "Bytes of queries sent to peers."},
      {"remote_partial_bytes_total", "counter", d(s.borrowed.partial_bytes + s.borrowed.partial_extra_bytes),
       "Bytes of partial results that came back."},
      {"remote_fetched_bytes_total", "counter", d(s.borrowed.fetched_bytes),
       "Bytes of keys and values that came here instead of a query going there."},
      {"remote_written_bytes_total", "counter", d(s.borrowed.written_bytes), "Bytes written to peers."},
      {"remote_read_bytes_total", "counter", d(s.borrowed.read_bytes), "Bytes read from peers."},
      {"remote_failed_total", "counter", d(s.borrowed.failed), "Reads, writes and queries that failed."},
      {"lent_queries_total", "counter", d(s.lent.queries), "Queries of peers answered here."},
      {"lent_busy_total", "counter", d(s.lent.busy), "Queries of peers refused for want of compute."},
      {"lent_busy_seconds_total", "counter", s.lent.busy_s, "Time spent on attention for peers."},
      {"settlements_total", "counter", d(s.counts.settlements), "Cycles of debts settled while it led."},
  };
}

Result<JoinedCluster> join_cluster(const ClusterFlags& flags, const ClusterModel* model, const Clock& clock) {
  EtcdMembershipSettings settings;
  KV_ASSIGN_OR_RETURN(settings.address, parse_etcd_address(flags.directory));
  KV_ASSIGN_OR_RETURN(std::unique_ptr<ClusterTransport> transport, make_transport(flags));
  settings.ttl_s = flags.ttl_s;

  cluster::NodeOptions options;
  options.self = member_of(flags, *transport, model);
  options.broker.protocol.location = flags.location;
  if (model != nullptr) {
    options.broker.protocol.lend_cap = model->lend_cap_cells;
    options.broker.protocol.device = true;
    options.broker.borrowable_cells = model->borrowable_cells;
    options.broker.cells_at_a_time =
        std::max(kFewestCellsAtATime, kBlocksAtATime * model->memory.shape.geometry.groups());
    options.memory = model->memory;
    options.memory->lent.share = flags.lend_compute;
    options.memory->borrowed.fetch = flags.fetch == "never"    ? Fetch::kNever
                                     : flags.fetch == "always" ? Fetch::kAlways
                                                               : Fetch::kByCost;
  }
  const ClusterTransport* const its_transport = transport.get();
  auto node = cluster::ClusterNode::join(std::move(options), std::move(transport),
                                         std::make_unique<EtcdMembership>(std::move(settings)),
                                         ops::kernels_for(ops::detect_isa()), clock);
  if (node.ok()) return JoinedCluster{*std::move(node), its_transport};
  return error(node.status().code(), "--cluster {}: {}", flags.directory, node.status().message());
}

}  // namespace kvasir
