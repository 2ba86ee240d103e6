// The keys of a cluster in the directory:
//
//   kvasir/<cluster>/members/<instance>   the member as JSON; its lease is the epoch
//   kvasir/<cluster>/leader               the leader's name; its lease is the epoch, the revision that made
//   it the term
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/membership/etcd_address.h"
#include "cluster/membership/etcd_types.h"
#include "cluster/membership/membership.h"
#include "cluster/tls/cluster_tls.h"

namespace kvasir {

struct ClusterKeys {
  explicit ClusterKeys(const std::string& cluster)
      : all("kvasir/" + cluster + "/"),
        members(all + "members/"),
        leader(all + "leader"),
        followed{all, all + "members0"} {}

  std::string member(const std::string& instance) const { return members + instance; }
  // The instance's name in a member's key; empty: it is no such key.
  std::string instance_of(const std::string& key) const {
    return key.starts_with(members) ? key.substr(members.size()) : std::string();
  }

  // Prefixes, except `leader`.
  const std::string all;
  const std::string members;
  const std::string leader;
  // The leader and the members, up to what sorts behind their last key.
  const EtcdKeyRange followed;
};

struct ClusterContents {
  std::vector<Member> members;  // by name
  std::optional<Leader> leader;
};

// Parses an entry; nothing for other keys and, with a warning, for damaged values.
std::optional<Member> member_of(const ClusterKeys& keys, const EtcdKeyValue& entry);
std::optional<Leader> leader_of(const ClusterKeys& keys, const EtcdKeyValue& entry);
ClusterContents contents_of(const ClusterKeys& keys, const EtcdSnapshot& snapshot);

// The present members, for a reader that is not one. `timeout` applies to one endpoint. Errors as EtcdClient.
Result<ClusterContents> read_cluster(const EtcdAddress& address, Nanos timeout,
                                     std::shared_ptr<const ClusterTls> tls = nullptr);

}  // namespace kvasir
