// Envelopes name the sender, the receiver, the life of each and a sequence number. Stale and malformed
// messages are dropped here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
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

// The earlier request goes first; at equal times the lower name.
inline bool goes_first(const PeerId& a, Nanos a_since, const PeerId& b, Nanos b_since) {
  return a_since != b_since ? a_since < b_since : ByPeer()(a, b);
}
// Sums of a few such times do not overflow, whatever peers say.
inline int64_t within_range(int64_t time) {
  return std::clamp<int64_t>(time, -INT64_MAX / 8, INT64_MAX / 8);
}
// How long ago something was, as its sender says, 0: it lies ahead.
Nanos age_of(int64_t since_ns, int64_t now_ns);

void put(const PeerId& from, wire::Peer* to);
PeerId get(const wire::Peer& peer);
// "instance#epoch"
std::string name_of(const PeerId& peer);

// Messages dropped since the start.
struct PostCounts {
  uint64_t malformed = 0;
  uint64_t stale = 0;     // to or from a life that is over, or from an unknown peer
  uint64_t repeated = 0;  // not above the last sequence number
};

// Not thread-safe. A message to the own instance is kept and returned by open_own().
class Post {
 public:
  // The transport outlives the post.
  Post(PeerTransport& transport, PeerId self) : transport_(transport), self_(std::move(self)) {}
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;

  const PeerId& self() const { return self_; }

  // Messages to and from the peer are accepted from now on; those of an earlier life of it are not.
  void joined(const PeerId& peer);
  void lost(const PeerId& peer);
  // True for the own instance, too.
  bool knows(const PeerId& peer) const;
  // The known life of an instance; none: it is no member.
  std::optional<PeerId> current(const std::string& instance) const;
  // Other instances that are known.
  size_t peers() const { return members_.size(); }
  std::vector<PeerId> members() const;

  // Fills in the envelope and sends it. Protocols with deadlines may ignore a failure. kUnavailable: by the
  // transport, or the peer is not known.
  Status send(const PeerId& to, wire::Envelope& message);
  Status send_data(const PeerId& to, std::span<const std::byte> bytes);

  // What a message turned out to be.
  struct Dropped {};
  struct LifeOver {
    PeerId peer;  // it is dead: another life of the instance has sent
  };
  struct Opened {
    PeerId from;
    std::shared_ptr<const wire::Envelope> message;  // has a body
  };
  using Outcome = std::variant<Dropped, LifeOver, Opened>;
  Outcome open(const PeerMessage& message);
  // The next message to the own instance, in order; Dropped: none.
  Outcome open_own();

  // Counts and logs a well-formed envelope with impossible content.
  void malformed(const PeerId& from, const Status& why);
  const PostCounts& counts() const { return counts_; }
  // Deterministic: equal posts have equal descriptions.
  std::string describe() const;

 private:
  struct Member {
    uint64_t epoch = 0;
    uint64_t last = 0;  // highest sequence number received
  };

  PeerTransport& transport_;
  const PeerId self_;
  uint64_t sent_ = 0;
  std::map<std::string, Member> members_;
  std::deque<std::shared_ptr<const wire::Envelope>> own_;
  PostCounts counts_;
};

}  // namespace kvasir::cluster
