// A directory of members in memory, for tests: members can die or be cut off, and leases end by a clock.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cluster/membership/membership.h"

namespace kvasir::test {

// What the memberships that it gives out share. Nothing happens by itself: whatever a call finds has happened
// by the clock's time. Epochs count from 1, terms too. Thread-safe; it outlives the memberships, and the
// clock outlives it.
class FakeDirectory {
 public:
  FakeDirectory(const Clock& clock, Nanos ttl) : clock_(clock), ttl_(ttl) {}

  // A handle that may join. Its join() never waits: a name is free when its lease has ended.
  std::unique_ptr<Membership> handle();

  // Brings all up to date with the clock, and calls notify() of those with news. What the functions
  // below do is found by the next call of a membership, or by this.
  void tick();

  // The instance's process is gone: its lease is not renewed any more, and its handle is told nothing.
  // REQUIRES: it is a member
  void kill(const std::string& instance);
  // The instance does not reach the directory, which does not renew its lease, until heal(). Then it is told
  // what it missed; if its lease has ended it has a new epoch. REQUIRES: an instance that has joined
  void partition(const std::string& instance);
  void heal(const std::string& instance);
  // The directory does not answer. Leases have their whole time again when it is back.
  void go_down();
  void come_up();

 private:
  class Handle;
  struct Node;

  // All with mutex_ held.
  Result<uint64_t> join(const std::shared_ptr<Node>& node, const Member& self);
  void leave(Node& node);
  void expire();
  void end(Node& node);
  void elect();
  void tell();
  void settle(std::unique_lock<std::mutex>& lock);
  Node& find(const std::string& instance);
  bool reaches(const Node& node) const;

  const Clock& clock_;
  const Nanos ttl_;
  std::mutex mutex_;                          // guards what follows, the nodes too
  std::vector<std::shared_ptr<Node>> nodes_;  // that have joined, in that order
  uint64_t epochs_ = 0;
  uint64_t terms_ = 0;
  std::optional<Leader> leader_;
  std::optional<Nanos> down_since_;
};

}  // namespace kvasir::test
