// Where the directory is: "etcd://host:2379[,host:2379][/cluster]".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvasir {

struct HostPort {
  std::string host;  // a name or an address; IPv6 without brackets
  uint16_t port = 0;
  // "host:port", "[::1]:port"
  std::string to_string() const;
  friend bool operator==(const HostPort&, const HostPort&) = default;
};

struct EtcdAddress {
  std::vector<HostPort> endpoints;  // at least one; members of one etcd cluster
  std::string cluster;              // "default" where the text names none
};

// The default port is 2379. kInvalidArgument: it is not such an address.
Result<EtcdAddress> parse_etcd_address(std::string_view text);

// Without TLS etcd is used only on this machine. kInvalidArgument: an endpoint is elsewhere.
Status check_endpoints(const EtcdAddress& address, bool tls);

// Whether it may name a cluster or an instance: 1 to 64 of a-z, digits, '.', '_', '-'. No capitals, for TLS
// does not tell them from small letters.
bool is_cluster_name(std::string_view name);

}  // namespace kvasir
