// Membership by etcd: keys under a lease for each member, and one for the leader (cluster_keys.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cluster/membership/cluster_keys.h"
#include "cluster/membership/cluster_view.h"
#include "cluster/membership/etcd_address.h"
#include "cluster/membership/etcd_client.h"
#include "cluster/membership/membership.h"

namespace kvasir {

struct EtcdMembershipSettings {
  EtcdAddress address;
  // How long a member that has died or is cut off still counts as alive; the lease is renewed after a third
  // of it. Whole seconds, 2 (etcd's floor) to 600.
  int64_t ttl_s = 5;
  // How long one endpoint may take to answer. 0: a fifth of the ttl, at least half a second.
  Nanos call_timeout = 0;
  std::shared_ptr<const ClusterTls> tls;  // null: without TLS
};

// A thread of this object renews the lease and follows the directory. Times are those of MonotonicClock.
class EtcdMembership final : public Membership {
 public:
  explicit EtcdMembership(EtcdMembershipSettings settings);
  ~EtcdMembership() override;

  Result<uint64_t> join(const Member& self) override;
  // Within two call timeouts.
  void leave() override;
  void campaign() override;
  void resign() override;
  void rejoin() override;
  std::vector<MembershipEvent> poll() override;
  void notify(std::function<void()> call) override;
  std::vector<Member> members() const override;
  std::optional<Leader> leader() const override;
  PeerId self() const override;
  std::optional<Nanos> down_since() const override;

 private:
  enum class State { kOut, kJoining, kIn, kLeft };

  // All below but tell() runs on the thread that joins, and then on thread_.
  void run();
  Status round();
  Status begin();
  Status wait_for_name();
  Status enter();
  Status renew();
  Status sync();
  Status stand();
  void take(const std::vector<EtcdEvent>& changes);
  void lose_epoch(const char* why);
  void depart();
  void note_up();
  void note_down(const Status& why);
  void tell(std::vector<MembershipEvent> events);
  bool stopping() const;

  // Constant after construction.
  const EtcdMembershipSettings settings_;
  const Nanos call_timeout_;
  const ClusterKeys keys_;
  const MonotonicClock clock_;

  // Of the thread that joins, and then of thread_.
  EtcdClient client_;  // wake() and cancel() from any
  std::string name_;
  std::string own_key_;
  std::string json_;          // the value of the own key
  int64_t lease_ = 0;         // 0: none
  bool entered_ = false;      // the own key exists under lease_
  int64_t own_revision_ = 0;  // that made it
  bool synced_ = false;       // a watch keeps the view up to date
  Nanos renew_at_ = 0;
  Nanos enter_at_ = 0;  // while not entered_
  Nanos last_answer_ = 0;
  std::string refused_;  // why the last try to enter failed, to log it once

  std::thread thread_;

  std::atomic<bool> gives_up_life_{false};  // rejoin() was called

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable state_changed_;
  State state_ = State::kOut;
  bool stop_ = false;
  bool campaigning_ = false;
  PeerId self_;
  ClusterView view_{""};
  std::optional<Nanos> down_since_;
  std::vector<MembershipEvent> events_;
  std::function<void()> notify_;
};

}  // namespace kvasir
