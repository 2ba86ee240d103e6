#include "cluster/membership/cluster_keys.h"

#include <utility>

#include "base/log.h"
#include "cluster/membership/etcd_client.h"
#include "cluster/membership/member_json.h"

namespace kvasir {

std::optional<Member> member_of(const ClusterKeys& keys, const EtcdKeyValue& entry) {
  if (!entry.key.starts_with(keys.members)) return std::nullopt;
  const std::string instance = keys.instance_of(entry.key);
  Result<Member> member = is_cluster_name(instance) && entry.lease > 0
                              ? member_from_json(entry.value, {instance, static_cast<uint64_t>(entry.lease)})
                              : error(ErrorCode::kCorrupt, "it has no name or no lease of a member");
  if (member.ok()) return std::move(member).value();
  log_warning("etcd's key '{}' is no member of the cluster: {}; delete it", entry.key,
              member.status().message());
  return std::nullopt;
}

std::optional<Leader> leader_of(const ClusterKeys& keys, const EtcdKeyValue& entry) {
  if (entry.key != keys.leader) return std::nullopt;
  if (!is_cluster_name(entry.value) || entry.lease <= 0 || entry.create_revision <= 0) {
    log_warning("etcd's key '{}' names no leader of the cluster: delete it", entry.key);
    return std::nullopt;
  }
  return Leader{{entry.value, static_cast<uint64_t>(entry.lease)},
                static_cast<uint64_t>(entry.create_revision)};
}

ClusterContents contents_of(const ClusterKeys& keys, const EtcdSnapshot& snapshot) {
  ClusterContents out;
  for (const EtcdKeyValue& entry : snapshot.entries) {
    if (std::optional<Member> member = member_of(keys, entry)) out.members.push_back(std::move(*member));
    if (std::optional<Leader> leader = leader_of(keys, entry)) out.leader = std::move(leader);
  }
  return out;
}

Result<ClusterContents> read_cluster(const EtcdAddress& address, Nanos timeout,
                                     std::shared_ptr<const ClusterTls> tls) {
  const ClusterKeys keys(address.cluster);
  EtcdClient client(address.endpoints, timeout, std::move(tls));
  KV_ASSIGN_OR_RETURN(const EtcdSnapshot snapshot, client.range(keys.followed));
  return contents_of(keys, snapshot);
}

}  // namespace kvasir
