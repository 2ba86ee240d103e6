// Messages between instances. This interface defines order, loss and death; the cluster defines the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace kvasir {

// One life of one instance. A restart gets a new epoch, which distinguishes messages of a former life.
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

  // The address of this endpoint, for the introduce() of others.
  virtual std::string address() const = 0;

  // Begins the instance's life with this epoch. Peers must be introduced anew, and messages and losses of an
  // earlier life are discarded. Before the call, and with epoch 0, the endpoint has no identity: it receives
  // nothing and cannot send.
  virtual void begin_life(uint64_t epoch) = 0;

  // Sets the address of a peer, and forgets an earlier life of that instance. Never blocks: a peer that
  // cannot be reached appears in lost() later. Nothing is received from a peer that was not introduced.
  virtual void introduce(const PeerId& peer, const std::string& address) = 0;
  // Removes the peer: from now on nothing is sent to it, received from it or reported about it.
  virtual void forget(const PeerId& peer) = 0;

  // Sends a message. Messages to one peer arrive in order or not at all. kUnavailable: the peer is known to
  // be dead, has another epoch, or was not introduced. Success does not mean that it arrives: callers keep
  // deadlines.
  virtual Status send(const PeerId& to, std::vector<std::byte> bytes) = 0;

  // The messages that have arrived since the last call. Never blocks.
  virtual std::vector<PeerMessage> receive() = 0;

  // Peers found dead since the last call; each is reported once.
  virtual std::vector<PeerId> lost() = 0;

  // Waits until receive() or lost() has something to return, until wake(), or for `timeout`.
  virtual void wait(Nanos timeout) = 0;
  // Ends the running wait(), or the next one. From any thread.
  virtual void wake() = 0;
};

}  // namespace kvasir
