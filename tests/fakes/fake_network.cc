#include "fakes/fake_network.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir::test {

class FakeNetwork::Endpoint final : public PeerTransport {
 public:
  Endpoint(FakeNetwork& network, PeerId id) : network_(network), id_(std::move(id)) {}
  Status send(const PeerId& to, std::vector<std::byte> bytes) override {
    return network_.send(id_, to, std::move(bytes));
  }
  std::vector<PeerMessage> receive() override { return network_.receive(id_); }
  std::vector<PeerId> lost() override { return network_.lost(id_); }

 private:
  FakeNetwork& network_;
  const PeerId id_;
};

std::unique_ptr<PeerTransport> FakeNetwork::join(const PeerId& id) {
  std::lock_guard lock(mutex_);
  KV_CHECK(find(id) == nullptr, "instance={} epoch={}", id.instance, id.epoch);
  for (Peer& peer : peers_) {
    if (peer.id.instance == id.instance && peer.alive) bury(peer);
  }
  Peer peer;
  peer.id = id;
  peers_.push_back(std::move(peer));
  return std::make_unique<Endpoint>(*this, id);
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
  if (find(from)->killed) return error(ErrorCode::kUnavailable, "{} is dead", from.instance);
  Peer* peer = find(to);
  if (!peer || !peer->alive) {
    return error(ErrorCode::kUnavailable, "{} of epoch {} is not there", to.instance, to.epoch);
  }
  Path& path = paths_[{from.instance, to.instance}];
  if (path.drop > 0) {
    --path.drop;
    return {};
  }
  path.last = std::max(path.last, clock_.now() + path.delay);
  peer->inbox.push_back({path.last, {from, std::move(bytes)}});
  return {};
}

std::vector<PeerMessage> FakeNetwork::receive(const PeerId& id) {
  std::lock_guard lock(mutex_);
  Peer& peer = *find(id);
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
  return std::exchange(find(id)->lost, {});
}

}  // namespace kvasir::test
