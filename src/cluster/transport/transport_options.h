// The options and counters of an endpoint of the cluster's network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "cluster/tls/cluster_tls.h"
#include "cluster/transport/connection_gate.h"
#include "contract/peer_transport.h"

namespace kvasir {

struct TransportOptions {
  // Its first life; epoch 0: no life until begin_life().
  PeerId self;
  // Its certificate, which names self.instance. Null: no TLS, and only addresses of this machine are used.
  std::shared_ptr<const ClusterTls> tls;
  // "host:port" or "[IPv6]:port"; port 0 takes any.
  std::string listen = "127.0.0.1:0";
  // The host in address(); empty: the host of `listen`, which then must be a single address.
  std::string advertise_host;
  // Longer messages are neither sent nor received.
  size_t max_message_bytes = size_t{64} << 20;
  // The bytes that may wait to be sent to one peer, and those that may wait for receive(). A peer that sends
  // more is cut off.
  size_t max_waiting_bytes = size_t{1} << 30;
  // A peer that takes nothing of what was sent to it for so long is lost. Must exceed the time that the
  // longest message takes.
  Nanos send_deadline = 5 * kNanosPerSecond;
  // A sender that was not introduced for so long is cut off.
  Nanos unknown_deadline = 10 * kNanosPerSecond;
  GateLimits gate;
};

// Totals since the endpoint began. Bytes are those of the messages alone.
struct TransportStats {
  uint64_t messages_sent = 0;  // accepted by send()
  uint64_t bytes_sent = 0;
  uint64_t messages_received = 0;  // ready for receive()
  uint64_t bytes_received = 0;
  uint64_t rejected_frames = 0;  // of another version or life, or in the name of another certificate
  uint64_t unknown_frames = 0;   // well formed, of a peer that was not introduced
  uint64_t refused_links = 0;    // connections beyond the bound, or cut off for an error
  uint64_t lost_peers = 0;
};

}  // namespace kvasir
