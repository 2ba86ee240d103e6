#include "fakes/fake_membership.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "cluster/membership/cluster_view.h"

namespace kvasir::test {

struct FakeDirectory::Node {
  Member member;
  bool joined = false;
  bool left = false;
  bool killed = false;
  bool cut = false;
  bool campaigning = false;
  bool member_now = false;            // its lease runs
  std::optional<Nanos> silent_since;  // its lease is not renewed since then
  std::optional<Nanos> told_down;     // it knows that it does not reach the directory
  ClusterView view{""};
  std::vector<MembershipEvent> events;
  size_t notified = 0;  // of events
  std::function<void()> notify;
};

class FakeDirectory::Handle final : public Membership {
  // What has happened by now, then `act`, then what follows from it.
  template <typename Act>
  auto locked(Act act) const {
    struct Settled {
      FakeDirectory& directory;
      std::unique_lock<std::mutex> lock;
      ~Settled() { directory.settle(lock); }
    } settled{directory_, std::unique_lock(directory_.mutex_)};
    directory_.tell();
    return act();
  }

 public:
  explicit Handle(FakeDirectory& directory) : directory_(directory), node_(std::make_shared<Node>()) {}
  ~Handle() override { leave(); }

  Result<uint64_t> join(const Member& self) override {
    return locked([&] { return directory_.join(node_, self); });
  }
  void leave() override {
    locked([&] { directory_.leave(*node_); });
  }
  void campaign() override {
    locked([&] { node_->campaigning = true; });
  }
  void rejoin() override {
    locked([&] {
      if (node_->member_now) directory_.end(*node_);
    });
  }
  void resign() override {
    locked([&] {
      node_->campaigning = false;
      if (directory_.leader_ && directory_.leader_->id == node_->member.id && directory_.reaches(*node_)) {
        directory_.leader_.reset();
      }
    });
  }
  std::vector<MembershipEvent> poll() override {
    locked([] {});
    const std::lock_guard lock(directory_.mutex_);
    node_->notified = 0;
    return std::exchange(node_->events, {});
  }
  void notify(std::function<void()> call) override {
    const std::lock_guard lock(directory_.mutex_);
    node_->notify = std::move(call);
  }
  std::vector<Member> members() const override {
    return locked([&] { return node_->view.members(); });
  }
  std::optional<Leader> leader() const override {
    return locked([&] { return node_->view.leader(); });
  }
  PeerId self() const override {
    return locked([&] { return node_->member.id; });
  }
  std::optional<Nanos> down_since() const override {
    return locked([&] { return node_->told_down; });
  }

 private:
  FakeDirectory& directory_;
  std::shared_ptr<Node> node_;
};

std::unique_ptr<Membership> FakeDirectory::handle() {
  return std::make_unique<Handle>(*this);
}

void FakeDirectory::tick() {
  std::unique_lock lock(mutex_);
  settle(lock);
}

void FakeDirectory::settle(std::unique_lock<std::mutex>& lock) {
  tell();
  std::vector<std::function<void()>> calls;
  for (const auto& node : nodes_) {
    if (node->events.size() > node->notified && node->notify) calls.push_back(node->notify);
    node->notified = node->events.size();
  }
  lock.unlock();
  for (const auto& call : calls) call();
}

void FakeDirectory::kill(const std::string& instance) {
  const std::lock_guard lock(mutex_);
  tell();
  Node& node = find(instance);
  node.killed = true;
  if (!node.silent_since) node.silent_since = clock_.now();
}

void FakeDirectory::partition(const std::string& instance) {
  const std::lock_guard lock(mutex_);
  tell();
  Node& node = find(instance);
  node.cut = true;
  if (!node.silent_since) node.silent_since = clock_.now();
}

void FakeDirectory::heal(const std::string& instance) {
  const std::lock_guard lock(mutex_);
  tell();
  find(instance).cut = false;
}

void FakeDirectory::go_down() {
  const std::lock_guard lock(mutex_);
  tell();
  if (!down_since_) down_since_ = clock_.now();
}

void FakeDirectory::come_up() {
  const std::lock_guard lock(mutex_);
  if (!down_since_) return;
  down_since_.reset();
  for (const auto& node : nodes_) {
    if (node->silent_since) node->silent_since = clock_.now();
  }
}

Result<uint64_t> FakeDirectory::join(const std::shared_ptr<Node>& node, const Member& self) {
  KV_CHECK(!node->joined, "{} has joined", node->member.id.instance);
  if (node->left) return error(ErrorCode::kUnavailable, "'{}' has left the cluster", self.id.instance);
  if (down_since_) return error(ErrorCode::kUnavailable, "the directory does not answer: start it");
  for (const auto& other : nodes_) {
    if (other->member_now && other->member.id.instance == self.id.instance) {
      return error(ErrorCode::kInvalidArgument,
                   "the name '{}' is taken by a live instance: give this one another", self.id.instance);
    }
  }
  // An earlier handle of the name is over; kill(), partition() and heal() mean the newest.
  std::erase_if(nodes_, [&](const auto& other) {
    return other->killed && other->member.id.instance == self.id.instance;
  });
  node->joined = node->member_now = true;
  node->member = self;
  node->member.id.epoch = ++epochs_;
  node->view = ClusterView(self.id.instance);
  nodes_.push_back(node);
  return node->member.id.epoch;
}

void FakeDirectory::leave(Node& node) {
  if (!std::exchange(node.left, true) && node.joined && reaches(node)) end(node);
  if (!node.silent_since) node.silent_since = clock_.now();
  node.killed = true;
  node.notify = nullptr;
}

bool FakeDirectory::reaches(const Node& node) const {
  return !down_since_ && !node.cut && !node.killed;
}

FakeDirectory::Node& FakeDirectory::find(const std::string& instance) {
  const auto it = std::find_if(nodes_.rbegin(), nodes_.rend(),
                               [&](const auto& node) { return node->member.id.instance == instance; });
  KV_CHECK(it != nodes_.rend(), "no instance {}", instance);
  return **it;
}

void FakeDirectory::end(Node& node) {
  node.member_now = false;
  if (leader_ && leader_->id == node.member.id) leader_.reset();
}

// Ends the leases that have not been renewed for the ttl.
void FakeDirectory::expire() {
  if (down_since_) return;
  for (const auto& node : nodes_) {
    if (node->member_now && node->silent_since && clock_.now() - *node->silent_since >= ttl_) end(*node);
  }
}

// The first in the order of joining that stands and can.
void FakeDirectory::elect() {
  if (down_since_ || leader_) return;
  for (const auto& node : nodes_) {
    if (node->member_now && node->campaigning && reaches(*node)) {
      leader_ = Leader{node->member.id, ++terms_};
      return;
    }
  }
}

// Brings all up to date that can be: first those whose lease ended come back, then all see all.
void FakeDirectory::tell() {
  expire();
  for (const auto& node : nodes_) {
    if (!reaches(*node)) continue;
    node->silent_since.reset();
    if (node->member_now) continue;
    if (node->view.leader() && node->view.leader()->id == node->member.id) {
      node->view.lead(std::nullopt, node->events);
    }
    node->events.push_back(EpochLost{node->member.id});
    node->member.id.epoch = ++epochs_;
    node->member_now = true;
    node->events.push_back(Rejoined{node->member.id});
  }
  elect();
  std::vector<Member> there;
  for (const auto& node : nodes_) {
    if (node->member_now) there.push_back(node->member);
  }
  std::sort(there.begin(), there.end(),
            [](const Member& a, const Member& b) { return a.id.instance < b.id.instance; });
  for (const auto& node : nodes_) {
    if (reaches(*node)) {
      node->view.replace(there, leader_, node->events);
      if (std::exchange(node->told_down, std::nullopt)) node->events.emplace_back(DirectoryUp{});
    } else if (!node->killed && !node->told_down) {
      node->told_down = node->cut ? node->silent_since : down_since_;
      node->events.push_back(
          DirectoryDown{node->told_down.value_or(clock_.now()), "the directory does not answer"});
    }
  }
}

}  // namespace kvasir::test
