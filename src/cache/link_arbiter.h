// Lets others have what a link and they share: a link stands still between two units while somebody claims
// it.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace kvasir {

// A collective between GPUs crosses the bus that transfers cross, and the step waits for the collective; so
// it claims the links before it begins and releases them after. On one CPU there are no collectives, and
// nothing claims.
// Thread-safe.
class LinkArbiter {
 public:
  // Counted: the links stand still until each claim was released. Does not wait: what a link has in hand, a
  // unit per thread, it moves to its end.
  void claim();
  // REQUIRES: a claim() that was not released yet
  void release();
  bool claimed() const { return claims_.load() > 0; }

  // For links. `released` is called when the last claim was released, on the thread that did that, and may
  // find the next claim made. It returns soon and does not subscribe. After unsubscribe() it is called no
  // more.
  void subscribe(const void* link, std::function<void()> released);
  void unsubscribe(const void* link);

 private:
  // No lock guards it: a link asks with its own lock held, which `released` takes.
  std::atomic<int> claims_{0};
  std::mutex mutex_;  // guards what follows
  std::vector<std::pair<const void*, std::function<void()>>> links_;
};

// A claim for its lifetime.
class LinkClaim {
 public:
  explicit LinkClaim(LinkArbiter& arbiter) : arbiter_(arbiter) { arbiter_.claim(); }
  ~LinkClaim() { arbiter_.release(); }
  LinkClaim(const LinkClaim&) = delete;
  LinkClaim& operator=(const LinkClaim&) = delete;

 private:
  LinkArbiter& arbiter_;
};

}  // namespace kvasir
