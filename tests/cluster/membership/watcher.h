// Memberships by a real etcd, and what they tell.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cluster/membership/etcd_membership.h"
#include "cluster/membership/members.h"

namespace kvasir::test {

constexpr int64_t kTtlS = 2;
constexpr Nanos kTtl = kTtlS * kNanosPerSecond;
constexpr std::chrono::seconds kMembershipPatience{15};

// A membership and all that it has told.
class Watcher {
 public:
  explicit Watcher(uint16_t port, Nanos call_timeout = 0)
      : membership_(std::make_unique<EtcdMembership>(
            EtcdMembershipSettings{{{{"127.0.0.1", port}}, "test"}, kTtlS, call_timeout, nullptr})) {
    membership_->notify([this] {
      const std::lock_guard lock(mutex_);
      changed_.notify_all();
    });
  }

  EtcdMembership& operator*() { return *membership_; }
  EtcdMembership* operator->() { return membership_.get(); }

  // Waits for an event after those that were waited for; false if it does not come. Those before it are
  // skipped.
  bool saw(const std::function<bool(const MembershipEvent&)>& wanted) {
    const auto until = std::chrono::steady_clock::now() + kMembershipPatience;
    std::unique_lock lock(mutex_);
    for (;;) {
      for (MembershipEvent& event : membership_->poll()) events_.push_back(std::move(event));
      while (next_ < events_.size()) {
        if (wanted(events_[next_++])) return true;
      }
      if (std::chrono::steady_clock::now() >= until) return false;
      changed_.wait_for(lock, std::chrono::milliseconds(100));
    }
  }
  bool saw(const std::string& described) {
    return saw([&](const MembershipEvent& event) { return describe(event) == described; });
  }
  bool saw_joined(const std::string& name) {
    return saw([&](const MembershipEvent& event) {
      const auto* joined = std::get_if<MemberJoined>(&event);
      return joined && joined->member.id.instance == name;
    });
  }
  bool saw_leader(const std::string& name) {
    return saw([&](const MembershipEvent& event) {
      const auto* changed = std::get_if<LeaderElected>(&event);
      return changed && changed->leader.id.instance == name;
    });
  }
  template <typename Event>
  bool saw_any() {
    return saw([](const MembershipEvent& event) { return std::holds_alternative<Event>(event); });
  }
  // Everything told so far, waited for or not.
  std::string all() {
    const std::lock_guard lock(mutex_);
    for (MembershipEvent& event : membership_->poll()) events_.push_back(std::move(event));
    return describe(events_);
  }
  // Forgets what was told so far.
  void skip() {
    all();
    next_ = events_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<MembershipEvent> events_;
  size_t next_ = 0;
  std::unique_ptr<EtcdMembership> membership_;  // ends first: its thread calls notify
};

inline PeerId id_of(Watcher& w) {
  return w->self();
}
inline std::string text_of(const PeerId& id) {
  return id.instance + "/" + std::to_string(id.epoch);
}
inline Nanos now() {
  return MonotonicClock().now();
}

}  // namespace kvasir::test
