#include "cluster/membership/etcd_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

namespace kvasir {
namespace {

constexpr std::string_view kEtcdScheme = "etcd://";
constexpr uint16_t kEtcdPort = 2379;
constexpr size_t kMaxEndpoints = 16;
constexpr size_t kMaxHostChars = 253;

bool is_host(std::string_view host) {
  return !host.empty() && host.size() <= kMaxHostChars && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '-' || c == '_' || c == ':' || c == '%';
  });
}

std::optional<HostPort> parse_host_port(std::string_view text) {
  std::string_view host = text, port;
  bool with_port = false;
  if (!text.empty() && text.front() == '[') {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    host = text.substr(1, end - 1);
    const std::string_view rest = text.substr(end + 1);
    with_port = !rest.empty();
    if (with_port && rest.front() != ':') return std::nullopt;
    if (with_port) port = rest.substr(1);
  } else if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    if (text.find(':', colon + 1) != std::string_view::npos) return std::nullopt;
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    with_port = true;
  }
  HostPort out{std::string(host), kEtcdPort};
  if (!is_host(host)) return std::nullopt;
  if (!with_port) return out;
  const auto [end, ec] = std::from_chars(port.data(), port.data() + port.size(), out.port);
  if (ec != std::errc() || end != port.data() + port.size() || out.port == 0) return std::nullopt;
  return out;
}

}  // namespace

std::string HostPort::to_string() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

bool is_cluster_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '.' || c == '-' || c == '_';
  });
}

Status check_endpoints(const EtcdAddress& address, bool tls) {
  const auto is_here = [](const HostPort& endpoint) {
    in_addr v4{};
    const bool is_v4 = inet_pton(AF_INET, endpoint.host.c_str(), &v4) == 1;
    return endpoint.host == "localhost" || endpoint.host == "::1" ||
           (is_v4 && ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET);
  };
  for (const HostPort& endpoint : address.endpoints) {
    if (tls || is_here(endpoint)) continue;
    return error(
        ErrorCode::kInvalidArgument,
        "--cluster: etcd at {} is not on this machine, which takes TLS: give --cluster-ssl-certfile, "
        "--cluster-ssl-keyfile and --cluster-ssl-ca-certs, too",
        endpoint.to_string());
  }
  return {};
}

Result<EtcdAddress> parse_etcd_address(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return error(ErrorCode::kInvalidArgument,
                 "the cluster '{}' {}; write it as etcd://host:2379[,host:2379][/name]", text, why);
  };
  if (!text.starts_with(kEtcdScheme)) return refuse("does not begin with etcd://");
  std::string_view hosts = text.substr(kEtcdScheme.size());
  EtcdAddress out{{}, "default"};
  if (const size_t slash = hosts.find('/'); slash != std::string_view::npos) {
    out.cluster = hosts.substr(slash + 1);
    hosts = hosts.substr(0, slash);
    if (!is_cluster_name(out.cluster)) return refuse("has a name that is not 1 to 64 of a-z 0-9 . _ -");
  }
  for (;;) {
    const size_t comma = hosts.find(',');
    std::optional<HostPort> endpoint = parse_host_port(hosts.substr(0, comma));
    if (!endpoint) return refuse("has an endpoint that is no host and port");
    if (out.endpoints.size() == kMaxEndpoints) return refuse("has more than 16 endpoints");
    out.endpoints.push_back(std::move(*endpoint));
    if (comma == std::string_view::npos) return out;
    hosts.remove_prefix(comma + 1);
  }
}

}  // namespace kvasir
