// etcd (3.4 or later), by its HTTP/JSON gateway. No TLS and no user: the directory belongs on the cluster's
// own network.
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

namespace kvasir {

// Every call tries the endpoints in turn, the last good one first, for `timeout` each. Errors of all calls:
// kUnavailable: none answers, or it is no time for it (no quorum, overloaded, cancel()). kCorrupt: what
// answers is not etcd. kUnsupported: it wants a user. kInvalidArgument: it refuses the request. Calls may be
// repeated by the client itself, so that a call that failed may have been done all the same. Not thread-safe
// but for wake() and cancel(): one thread uses it.
class EtcdClient {
 public:
  // REQUIRES: endpoints is not empty
  EtcdClient(std::vector<HostPort> endpoints, Nanos timeout);
  ~EtcdClient();

  // A lease of ttl_s seconds; etcd may give more.
  Result<EtcdLease> grant(int64_t ttl_s);
  // Makes the lease run from its start again. ttl_s is 0 if it has ended.
  Result<EtcdLease> keep_alive(int64_t lease);
  // What is left of a lease, in whole seconds; below 0 if it has ended.
  Result<EtcdLease> time_to_live(int64_t lease);
  // Ends the lease and deletes its keys. A lease that has ended is no error.
  Status revoke(int64_t lease);

  // Returns the revision. kNotFound: no such lease (0: none wanted).
  Result<int64_t> put(std::string_view key, std::string_view value, int64_t lease);
  Result<EtcdSnapshot> range(const EtcdKeyRange& keys);
  // All keys under a prefix that is not empty.
  Result<EtcdSnapshot> range(std::string_view prefix);
  // Puts a key that is absent. kNotFound: no such lease.
  Result<EtcdTxn> create(std::string_view key, std::string_view value, int64_t lease);
  // Deletes a key if that revision has created it.
  Result<EtcdTxn> remove(std::string_view key, int64_t create_revision);

  // From now on changes of these keys are collected, those of from_revision and later. One watch at a time.
  Status watch(const EtcdKeyRange& keys, int64_t from_revision);
  Status watch(std::string_view prefix, int64_t from_revision);
  void unwatch();
  // Waits for changes: until some have come, wake(), cancel() or the timeout, whichever is first, and returns
  // them in order; may return none early. An error: the watch has ended, or there is none, or another
  // endpoint than its own answers calls by now. Changes may be missing, so read range() again.
  Result<std::vector<EtcdEvent>> wait(Nanos timeout);
  // Waits without a watch: until wake(), cancel() or the timeout.
  void pause(Nanos timeout);

  // Ends a wait() or pause() of now, or the next one. From any thread.
  void wake();
  // Calls of now and later ones end with kUnavailable, until resume(). From any thread.
  void cancel();
  void resume();
  // All calls together end within `time` from now; nothing: no such bound any more.
  void hurry(std::optional<Nanos> time);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
