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

  // Sends a message; messages to one peer arrive in order or not at all. kUnavailable: the peer is known to
  // be dead, or of another epoch. Success does not mean that it arrives: callers keep deadlines.
  virtual Status send(const PeerId& to, std::vector<std::byte> bytes) = 0;

  // What has arrived since the last call. Never blocks.
  virtual std::vector<PeerMessage> receive() = 0;

  // Peers that have been found dead since the last call; each is told once.
  virtual std::vector<PeerId> lost() = 0;
};

}  // namespace kvasir
