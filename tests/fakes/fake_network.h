// A network of peers in memory, for tests: messages can be lost or late, and peers can die and come back.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "contract/peer_transport.h"

namespace kvasir::test {

// Thread-safe. It outlives the transports that it gives out.
class FakeNetwork {
 public:
  // The clock says when a late message arrives; it outlives the network.
  explicit FakeNetwork(const Clock& clock) : clock_(clock) {}

  // Joins a peer. If an earlier life of the instance is there it is dead from now on, though what it still
  // sends arrives, under its old epoch. REQUIRES: this life never joined before.
  std::unique_ptr<PeerTransport> join(const PeerId& id);

  // The next `count` messages between two instances vanish; their senders are told of success.
  void drop(const std::string& from, const std::string& to, int count);
  // From now on messages between two instances take so long.
  void delay(const std::string& from, const std::string& to, Nanos by);
  // The instance dies: what it has not received is lost, and the others learn of it, once each.
  void kill(const std::string& instance);

 private:
  class Endpoint;
  struct Due {
    Nanos at;
    PeerMessage message;
  };
  struct Peer {
    PeerId id;
    bool alive = true;  // the current life of its instance
    bool killed = false;
    std::vector<Due> inbox;
    std::vector<PeerId> lost;
  };
  struct Path {
    int drop = 0;
    Nanos delay = 0;
    Nanos last = 0;  // nothing overtakes what was sent before
  };

  Status send(const PeerId& from, const PeerId& to, std::vector<std::byte> bytes);
  std::vector<PeerMessage> receive(const PeerId& id);
  std::vector<PeerId> lost(const PeerId& id);
  Peer* find(const PeerId& id);
  void bury(Peer& peer);

  const Clock& clock_;
  std::mutex mutex_;  // guards what follows
  std::vector<Peer> peers_;
  std::map<std::pair<std::string, std::string>, Path> paths_;
};

}  // namespace kvasir::test
