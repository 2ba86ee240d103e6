// Envelopes: who sends to whom in which life, in what order; what is stale or malformed goes no further.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "contract/peer_transport.h"

namespace kvasir::wire {
class Envelope;
class Peer;
}  // namespace kvasir::wire

namespace kvasir::cluster {

// For maps: by name, then by epoch.
struct ByPeer {
  bool operator()(const PeerId& a, const PeerId& b) const {
    const int order = a.instance.compare(b.instance);
    return order != 0 ? order < 0 : a.epoch < b.epoch;
  }
};

void put(const PeerId& from, wire::Peer* to);
PeerId get(const wire::Peer& peer);
// "instance#epoch"
std::string name_of(const PeerId& peer);

// What did not go through, since the start.
struct PostCounts {
  uint64_t malformed = 0;
  uint64_t stale = 0;     // to or from a life that is over, or from nobody that is known
  uint64_t repeated = 0;  // not above the last sequence number
};

// Not thread-safe. A message to oneself is kept and given out by open_own().
class Post {
 public:
  // The transport outlives the post.
  Post(PeerTransport& transport, PeerId self) : transport_(transport), self_(std::move(self)) {}
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;

  const PeerId& self() const { return self_; }

  // The peer may be written to and heard from now; an earlier life of it may not any more.
  void joined(const PeerId& peer);
  void lost(const PeerId& peer);
  // Oneself, too.
  bool knows(const PeerId& peer) const;
  // The life of an instance that is known; none: it is no member.
  std::optional<PeerId> current(const std::string& instance) const;

  // The lives that are known of all others.
  std::vector<PeerId> peers() const;

  // Fills in the envelope and sends it. That it did not go is no news to protocols with deadlines;
  // kUnavailable as of the transport, or because the peer is not known.
  Status send(const PeerId& to, wire::Envelope& message);
  Status send_data(const PeerId& to, std::span<const std::byte> bytes);

  // What a message turned out to be.
  struct Dropped {};
  struct LifeOver {
    PeerId peer;  // it is dead, as another life of the instance says
  };
  struct Opened {
    PeerId from;
    std::shared_ptr<const wire::Envelope> message;  // has a body
  };
  using Outcome = std::variant<Dropped, LifeOver, Opened>;
  Outcome open(const PeerMessage& message);
  // The next message to oneself, in order; Dropped: none.
  Outcome open_own();

  // Counts and logs a message that was an envelope but says what cannot be.
  void malformed(const PeerId& from, const Status& why);
  const PostCounts& counts() const { return counts_; }
  // Deterministic: equal posts have equal descriptions.
  std::string describe() const;

 private:
  struct Member {
    uint64_t epoch = 0;
    uint64_t last = 0;  // sequence heard
  };

  PeerTransport& transport_;
  const PeerId self_;
  uint64_t sent_ = 0;
  std::map<std::string, Member> members_;
  std::deque<std::shared_ptr<const wire::Envelope>> own_;
  PostCounts counts_;
};

}  // namespace kvasir::cluster
