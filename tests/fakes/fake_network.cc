#include "fakes/fake_network.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace kvasir::test {

class FakeNetwork::Endpoint final : public PeerTransport {
 public:
  Endpoint(FakeNetwork& network, PeerId id)
      : network_(network), address_("fake:" + id.instance), id_(std::move(id)) {}
  void begin_life(uint64_t epoch) override { network_.begin_life(id_, epoch); }
  Status send(const PeerId& to, std::vector<std::byte> bytes) override {
    return network_.send(id_, to, std::move(bytes));
  }
  std::vector<PeerMessage> receive() override { return network_.receive(id_); }
  std::vector<PeerId> lost() override { return network_.lost(id_); }
  // All instances know each other here, and waiting is the test's business.
  std::string address() const override { return address_; }
  void introduce(const PeerId&, const std::string&) override {}
  void forget(const PeerId&) override {}
  void wait(Nanos) override {}
  void wake() override {}

 private:
  FakeNetwork& network_;
  const std::string address_;
  PeerId id_;  // guarded by the network's mutex
};

std::unique_ptr<PeerTransport> FakeNetwork::join(const PeerId& id) {
  std::lock_guard lock(mutex_);
  enter(id);
  return std::make_unique<Endpoint>(*this, id);
}

void FakeNetwork::begin_life(PeerId& id, uint64_t epoch) {
  std::lock_guard lock(mutex_);
  const Peer* now = find(id);
  if (now && now->killed) return;
  id.epoch = epoch;
  enter(id);
}

// The earlier lives of the instance are over, and this one is there, unless its epoch is 0.
void FakeNetwork::enter(const PeerId& id) {
  KV_CHECK(find(id) == nullptr, "instance={} epoch={}", id.instance, id.epoch);
  for (Peer& peer : peers_) {
    if (peer.id.instance == id.instance && peer.alive) bury(peer);
  }
  if (id.epoch == 0) return;
  Peer peer;
  peer.id = id;
  peers_.push_back(std::move(peer));
}

void FakeNetwork::drop(const std::string& from, const std::string& to, int count) {
  std::lock_guard lock(mutex_);
  paths_[{from, to}].drop += count;
}

void FakeNetwork::delay(const std::string& from, const std::string& to, Nanos by) {
  std::lock_guard lock(mutex_);
  paths_[{from, to}].delay = by;
}

void FakeNetwork::kill(const std::string& instance) {
  std::lock_guard lock(mutex_);
  for (Peer& peer : peers_) {
    if (peer.id.instance != instance || !peer.alive) continue;
    peer.killed = true;
    bury(peer);
  }
}

void FakeNetwork::bury(Peer& peer) {
  peer.alive = false;
  peer.inbox.clear();
  for (Peer& other : peers_) {
    if (other.alive) other.lost.push_back(peer.id);
  }
}

FakeNetwork::Peer* FakeNetwork::find(const PeerId& id) {
  auto it = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.id == id; });
  return it == peers_.end() ? nullptr : &*it;
}

Status FakeNetwork::send(const PeerId& from, const PeerId& to, std::vector<std::byte> bytes) {
  std::lock_guard lock(mutex_);
  const Peer* sender = find(from);
  if (!sender) return error(ErrorCode::kUnavailable, "{} has not begun a life", from.instance);
  if (sender->killed) return error(ErrorCode::kUnavailable, "{} is dead", from.instance);
  Peer* peer = find(to);
  if (!peer || !peer->alive) {
    return error(ErrorCode::kUnavailable, "{} of epoch {} is not there", to.instance, to.epoch);
  }
  Path& path = paths_[{from.instance, to.instance}];
  if (path.apart) return {};
  if (path.drop > 0) {
    --path.drop;
    return {};
  }
  if (spy_) spy_({from, to}, bytes);
  if (hold_) {
    held_[{from, to}].push_back(std::move(bytes));
    return {};
  }
  path.last = std::max(path.last, clock_.now() + path.delay);
  peer->inbox.push_back({path.last, {from, std::move(bytes)}});
  return {};
}

bool FakeNetwork::ByNames::operator()(const Held& a, const Held& b) const {
  return std::tie(a.from.instance, a.from.epoch, a.to.instance, a.to.epoch) <
         std::tie(b.from.instance, b.from.epoch, b.to.instance, b.to.epoch);
}

void FakeNetwork::hold() {
  std::lock_guard lock(mutex_);
  hold_ = true;
}

std::vector<FakeNetwork::Held> FakeNetwork::held() const {
  std::lock_guard lock(mutex_);
  std::vector<Held> out;
  for (const auto& [pair, messages] : held_) out.push_back(pair);
  return out;
}

std::vector<std::vector<std::byte>> FakeNetwork::held_of(const Held& pair) const {
  std::lock_guard lock(mutex_);
  const auto it = held_.find(pair);
  if (it == held_.end()) return {};
  return {it->second.begin(), it->second.end()};
}

std::vector<std::byte> FakeNetwork::take_held(const Held& pair) {
  const auto it = held_.find(pair);
  KV_CHECK(it != held_.end(), "nothing is held from {} to {}", pair.from.instance, pair.to.instance);
  std::vector<std::byte> bytes = std::move(it->second.front());
  it->second.pop_front();
  if (it->second.empty()) held_.erase(it);
  return bytes;
}

void FakeNetwork::deliver(const Held& pair) {
  std::lock_guard lock(mutex_);
  std::vector<std::byte> bytes = take_held(pair);
  for (Peer& peer : peers_) {
    if (peer.id.instance == pair.to.instance && peer.alive) {
      peer.inbox.push_back({clock_.now(), {pair.from, std::move(bytes)}});
      return;
    }
  }
}

void FakeNetwork::lose(const Held& pair) {
  std::lock_guard lock(mutex_);
  take_held(pair);
}

void FakeNetwork::cut(const std::string& a, const std::string& b, bool apart) {
  std::lock_guard lock(mutex_);
  paths_[{a, b}].apart = apart;
  paths_[{b, a}].apart = apart;
  if (!apart) return;
  std::erase_if(held_, [&](const auto& entry) {
    const Held& pair = entry.first;
    return (pair.from.instance == a && pair.to.instance == b) ||
           (pair.from.instance == b && pair.to.instance == a);
  });
}

std::vector<PeerMessage> FakeNetwork::receive(const PeerId& id) {
  std::lock_guard lock(mutex_);
  Peer* const known = find(id);
  if (!known) return {};
  Peer& peer = *known;
  std::vector<PeerMessage> out;
  std::vector<Due> later;
  for (Due& due : peer.inbox) {
    if (due.at <= clock_.now()) {
      out.push_back(std::move(due.message));
    } else {
      later.push_back(std::move(due));
    }
  }
  peer.inbox = std::move(later);
  return out;
}

std::vector<PeerId> FakeNetwork::lost(const PeerId& id) {
  std::lock_guard lock(mutex_);
  Peer* const peer = find(id);
  return peer ? std::exchange(peer->lost, {}) : std::vector<PeerId>();
}

}  // namespace kvasir::test
