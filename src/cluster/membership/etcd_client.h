// etcd (3.4 or later), by gRPC.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/membership/etcd_address.h"
#include "cluster/membership/etcd_types.h"
#include "cluster/tls/cluster_tls.h"

namespace kvasir {

// Every call tries the endpoints in turn, the last good one first, for `timeout` each. Errors of all calls:
// kUnavailable: no endpoint answers, or etcd cannot serve the call now (no quorum, overloaded, cancel()).
// kCorrupt: what answers is not etcd. kUnsupported: etcd requires another user. kInvalidArgument: etcd
// refuses the request. The client may repeat a call, and a call that failed may still have taken effect. Not
// thread-safe except wake() and cancel(): one thread uses it.
class EtcdClient {
 public:
  // Null `tls`: without TLS. REQUIRES: endpoints is not empty
  EtcdClient(std::vector<HostPort> endpoints, Nanos timeout, std::shared_ptr<const ClusterTls> tls = nullptr);
  ~EtcdClient();

  // A lease of ttl_s seconds; etcd may give more.
  Result<EtcdLease> grant(int64_t ttl_s);
  // Renews the lease for its whole ttl, by a stream that stays open. ttl_s is 0 if it has ended.
  Result<EtcdLease> keep_alive(int64_t lease);
  // The remaining time of a lease, in whole seconds; below 0 if it has ended.
  Result<EtcdLease> time_to_live(int64_t lease);
  // Ends the lease and deletes its keys. A lease that has ended is no error.
  Status revoke(int64_t lease);

  // Returns the revision. kNotFound: no such lease (0: none wanted).
  Result<int64_t> put(std::string_view key, std::string_view value, int64_t lease);
  Result<EtcdSnapshot> range(const EtcdKeyRange& keys);
  // All keys under a prefix that is not empty.
  Result<EtcdSnapshot> range(std::string_view prefix);
  // Puts a key if it is absent. kNotFound: no such lease.
  Result<EtcdTxn> create(std::string_view key, std::string_view value, int64_t lease);
  // Deletes a key if that revision has created it.
  Result<EtcdTxn> remove(std::string_view key, int64_t create_revision);

  // Collects changes of these keys from now on, those of from_revision and later. One watch at a time.
  Status watch(const EtcdKeyRange& keys, int64_t from_revision);
  Status watch(std::string_view prefix, int64_t from_revision);
  void unwatch();
  // Waits for changes: until some have come, wake(), cancel() or the timeout, whichever is first, and returns
  // them in order; may return none early. An error: the watch has ended, there is none, or calls are now
  // answered by another endpoint than the watch's. Changes may be missing, so read range() again.
  Result<std::vector<EtcdEvent>> wait(Nanos timeout);
  // Waits without a watch: until wake(), cancel() or the timeout.
  void pause(Nanos timeout);

  // Ends the current wait() or pause(), or else the next one. From any thread.
  void wake();
  // Current and later calls end with kUnavailable, until resume(). From any thread.
  void cancel();
  void resume();
  // All calls together end within `time` from now; nullopt removes the bound.
  void hurry(std::optional<Nanos> time);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
