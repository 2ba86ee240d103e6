// Messages between instances. The bytes are the cluster's business; order, loss and death are this seam's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace kvasir {

// One life of one instance: a restart gets a new epoch, so that what a former life sends can be told apart.
struct PeerId {
  std::string instance;
  uint64_t epoch = 0;
  friend bool operator==(const PeerId&, const PeerId&) = default;
};

struct PeerMessage {
  PeerId from;
  std::vector<std::byte> bytes;
};

// Thread-safe.
class PeerTransport {
 public:
  virtual ~PeerTransport() = default;

  // Where others reach this endpoint, for their introduce().
  virtual std::string address() const = 0;

  // From now on this endpoint is its instance's life of that epoch: peers must be introduced anew, and what
  // an earlier life was sent, or was told of, is gone. Before the call, and with epoch 0, the endpoint has no
  // identity: it receives nothing and cannot send.
  virtual void begin_life(uint64_t epoch) = 0;

  // Says where a peer is reached; an earlier life of the instance is forgotten. Never blocks: whether it can
  // be reached shows later, by lost(). Of a peer that was not introduced nothing is received.
  virtual void introduce(const PeerId& peer, const std::string& address) = 0;
  // Removes the peer: from now on nothing is sent to it, received from it or reported about it.
  virtual void forget(const PeerId& peer) = 0;

  // Sends a message; messages to one peer arrive in order or not at all. kUnavailable: the peer is known to
  // be dead, of another epoch, or was not introduced. Success does not mean that it arrives: callers keep
  // deadlines.
  virtual Status send(const PeerId& to, std::vector<std::byte> bytes) = 0;

  // What has arrived since the last call. Never blocks.
  virtual std::vector<PeerMessage> receive() = 0;

  // Peers that have been found dead since the last call; each is told once.
  virtual std::vector<PeerId> lost() = 0;

  // Waits until there is something for receive() or lost(), until wake() or for `timeout`, whichever is
  // first.
  virtual void wait(Nanos timeout) = 0;
  // Ends a wait() of now, or the next one. From any thread.
  virtual void wake() = 0;
};

}  // namespace kvasir
