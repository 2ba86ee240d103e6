#include "runtime/join_cluster.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "cluster/membership/etcd_membership.h"
#include "cluster/transport/grpc_transport.h"
#include "cluster/transport/socket_address.h"
#include "ops/cpu/isa.h"

namespace kvasir {
namespace {

// The version of the messages between instances; a change of any of them is a new version.
constexpr int kWireVersion = 6;
// Peers that are asked to compute rows of a prompt, one after the other.
constexpr uint32_t kPromptAsked = 3;
constexpr size_t kMaxLocationBytes = 256;

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

Status complete_identity(ClusterOptions& flags) {
  if (flags.tls_files.on()) {
    KV_ASSIGN_OR_RETURN(flags.tls, ClusterTls::load(flags.tls_files));
    const std::vector<std::string>& names = flags.tls->now()->names;
    const auto name =
        std::find_if(names.begin(), names.end(), [](const auto& n) { return is_cluster_name(n); });
    if (flags.name.empty() && name != names.end()) flags.name = *name;
  }
  if (flags.name.empty()) {
    flags.name = fmt::format("{}-{}", host_name(), getpid());
    for (char& c : flags.name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  if (!is_cluster_name(flags.name)) {
    return error(ErrorCode::kInvalidArgument,
                 "--cluster-name '{}': 1 to 64 of a-z, 0-9, '.', '_' and '-' make a name", flags.name);
  }
  return flags.tls ? flags.tls->check_name(flags.name) : Status();
}

// Looks names up here, because at a peer a name may mean another host, or none.
Status complete_host(ClusterOptions& flags) {
  const Result<SocketAddress> listen = parse_address(flags.listen, Names::kLookUp);
  if (!listen.ok()) return error(listen.status().code(), "--cluster-listen: {}", listen.status().message());
  if (!flags.tls && !listen->is_loopback()) {
    return error(ErrorCode::kInvalidArgument,
                 "--cluster-listen {} is not of this machine alone, which takes TLS: give "
                 "--cluster-ssl-certfile, --cluster-ssl-keyfile and --cluster-ssl-ca-certs, too",
                 flags.listen);
  }
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
  // A socket on an IPv4 address cannot be reached by IPv6.
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
  if (!flags.tls && !found->is_loopback()) {
    return error(ErrorCode::kInvalidArgument,
                 "--cluster-advertise-host {} is not of this machine alone, which takes TLS: give "
                 "--cluster-ssl-certfile, --cluster-ssl-keyfile and --cluster-ssl-ca-certs, too",
                 host);
  }
  host = found->host();
  return {};
}

bool is_location(const std::string& text) {
  return text.size() <= kMaxLocationBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
}

Result<std::unique_ptr<ClusterTransport>> make_transport(const ClusterOptions& flags) {
  TransportOptions options;
  options.self = {flags.name, 0};
  options.tls = flags.tls;
  options.listen = flags.listen;
  options.advertise_host = flags.advertise_host;
  return make_grpc_transport(options);
}

Member member_of(const ClusterOptions& flags, const ClusterTransport& transport, const ClusterModel* model) {
  Member m;
  m.id.instance = flags.name;
  m.transport = "grpc";
  m.transport_version = transport.wire();
  m.wire_version = kWireVersion;
  m.kvasir_version = KVASIR_VERSION;
  m.http_address = flags.http_address;
  m.status_address = flags.status_address;
  if (model == nullptr) return m;
  m.numerics_id = model->numerics_id;
  m.geometry = model->geometry;
  m.lends_cells = model->lend_cap_cells;
  return m;
}

}  // namespace

Status complete_cluster_options(ClusterOptions& flags) {
  const Result<EtcdAddress> directory = parse_etcd_address(flags.directory);
  if (!directory.ok()) return error(directory.status().code(), "--cluster: {}", directory.status().message());
  KV_RETURN_IF_ERROR(complete_identity(flags));
  KV_RETURN_IF_ERROR(check_endpoints(*directory, flags.tls != nullptr));
  if (flags.location.empty()) flags.location = host_name();
  if (!is_location(flags.location)) {
    return error(ErrorCode::kInvalidArgument,
                 "--cluster-location '{}': at most {} printable ASCII characters without spaces make one, as "
                 "ZONE/RACK/HOST",
                 flags.location, kMaxLocationBytes);
  }
  return complete_host(flags);
}

std::string url_at(std::string url, const std::string& host) {
  for (const std::string_view any : {"//0.0.0.0:", "//[::]:"}) {
    const size_t at = url.find(any);
    if (at == std::string::npos) continue;
    const std::string there = "//" + join_address(host, 0);  // "//host:0"
    return url.replace(at, any.size(), there.substr(0, there.size() - 1));
  }
  return url;
}

std::vector<OutsideMetric> cluster_metrics(const JoinedCluster& joined) {
  const cluster::NodeFigures s = joined.node->figures();
  const TransportStats transport = joined.transport->stats();
  const auto d = [](uint64_t n) { return static_cast<double>(n); };
  return {
      {"cluster_member", "gauge", s.member ? 1.0 : 0.0, "Whether it is a member of its cluster now."},
      {"cluster_peers", "gauge", d(s.peers), "Members with which it can share memory."},
      {"cluster_leads", "gauge", s.leads ? 1.0 : 0.0, "Whether it is the gManager."},
      {"cluster_directory_down_seconds", "gauge", s.directory_down_s, "For how long etcd has not answered."},
      {"cluster_rejected_frames_total", "counter", d(transport.rejected_frames),
       "Links that were begun in another's name, to another life, or in another version."},
      {"cluster_refused_links_total", "counter", d(transport.refused_links),
       "Connections that were cut for what came along them, for want of room, or because nothing came."},
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
      {"settlements_total", "counter", d(s.settlements), "Cycles of debts settled while it led."},
  };
}

Result<JoinedCluster> join_cluster(const ClusterOptions& flags, const ClusterModel* model,
                                   const Clock& clock) {
  EtcdMembershipSettings settings;
  KV_ASSIGN_OR_RETURN(settings.address, parse_etcd_address(flags.directory));
  KV_ASSIGN_OR_RETURN(std::unique_ptr<ClusterTransport> transport, make_transport(flags));
  settings.ttl_s = flags.ttl_s;
  settings.tls = flags.tls;

  cluster::NodeOptions options;
  options.self = member_of(flags, *transport, model);
  options.broker.protocol.location = flags.location;
  if (model == nullptr || model->prefix_cells == 0) options.broker.protocol.prefix_asked = 0;
  if (model != nullptr) {
    options.broker.protocol.lend_cap = model->lend_cap_cells;
    options.broker.protocol.device = true;
    options.broker.protocol.prompt_asked = model->computes_prompts ? kPromptAsked : 0;
    options.broker.protocol.computes_prompts = model->computes_prompts && flags.lend_compute > 0;
    options.broker.borrowable_cells = model->borrowable_cells;
    options.broker.attended_cells = model->attended_cells;
    options.broker.prefix_cells = model->prefix_cells;
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
