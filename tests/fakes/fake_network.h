// A network of peers in memory, for tests: messages can be lost or late, and peers can die and come back.
#pragma once

#include <deque>
#include <functional>
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

  // Joins a peer. If an earlier life of the instance is there it is dead from now on, though what its
  // endpoint still sends arrives, under its old epoch. Epoch 0: no identity, until begin_life() of the
  // endpoint, by which the life that it has is dead and the next one joins. REQUIRES: this life never joined
  // before.
  std::unique_ptr<PeerTransport> join(const PeerId& id);

  // The next `count` messages between two instances vanish; their senders are told of success.
  void drop(const std::string& from, const std::string& to, int count);
  // From now on messages between two instances take so long.
  void delay(const std::string& from, const std::string& to, Nanos by);
  // The instance dies: what it has not received is lost, and the others learn of it, once each. Its endpoint
  // begins no other life.
  void kill(const std::string& instance);

  // From now on a message arrives when deliver() says so, at whichever life of its instance is alive then:
  // what was meant for an earlier one may reach a later one.
  void hold();
  struct Held {
    PeerId from;
    PeerId to;
    friend bool operator==(const Held&, const Held&) = default;
  };
  // The pairs between which messages are held: each once, by name and epoch.
  std::vector<Held> held() const;
  // The messages of a pair, in order.
  std::vector<std::vector<std::byte>> held_of(const Held& pair) const;
  // The pair's next message arrives, or vanishes because the receiver is dead. REQUIRES: there is one
  void deliver(const Held& pair);
  // The pair's next message vanishes. REQUIRES: there is one
  void lose(const Held& pair);
  // Whether two instances hear each other: if not, what they send and what is held between them vanishes, and
  // no endpoint is told.
  void cut(const std::string& a, const std::string& b, bool apart);
  // Sees every message that is sent and not lost on sending. Not to call back.
  using Spy = std::function<void(const Held& pair, const std::vector<std::byte>& bytes)>;
  void spy(Spy spy) { spy_ = std::move(spy); }

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
    bool apart = false;
  };

  struct ByNames {
    bool operator()(const Held& a, const Held& b) const;
  };

  std::vector<std::byte> take_held(const Held& pair);
  // An endpoint's calls: the id is its own, which mutex_ guards.
  void begin_life(PeerId& id, uint64_t epoch);
  Status send(const PeerId& from, const PeerId& to, std::vector<std::byte> bytes);
  std::vector<PeerMessage> receive(const PeerId& id);
  std::vector<PeerId> lost(const PeerId& id);
  // With mutex_ held.
  void enter(const PeerId& id);
  Peer* find(const PeerId& id);
  void bury(Peer& peer);

  const Clock& clock_;
  Spy spy_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Peer> peers_;
  std::map<std::pair<std::string, std::string>, Path> paths_;
  bool hold_ = false;
  std::map<Held, std::deque<std::vector<std::byte>>, ByNames> held_;  // no empty ones
};

}  // namespace kvasir::test
