// Messages between simulated instances. None is lost, and each takes the time of its path.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apps/simulate/topology.h"
#include "base/clock.h"
#include "contract/peer_transport.h"

namespace kvasir {

// Instances 0 to topology.instances - 1, and number topology.instances, which runs no model and stands on a
// node of its own. Used by one thread.
class SimNetwork {
 public:
  explicit SimNetwork(const Topology& topology) : topology_(topology), inboxes_(topology.instances + 1) {}
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  static PeerId id_of(uint32_t number);
  // REQUIRES: id_of() made it
  static uint32_t number_of(const PeerId& id);

  // The transport of an instance, once for each. A message leaves at the time of the clock, which outlives
  // the transport.
  PeerTransport& open(uint32_t number, const Clock& clock);

  // The messages that have arrived by then, in order of arrival.
  std::vector<PeerMessage> receive(uint32_t number, Nanos by);
  // When the next message on its way arrives; INT64_MAX: there is none.
  Nanos next_arrival(uint32_t number) const;

  uint64_t messages() const { return messages_; }

 private:
  class Endpoint;
  using Inbox = std::multimap<Nanos, PeerMessage>;  // by arrival

  Status send(uint32_t from, Nanos now, const PeerId& to, std::vector<std::byte> bytes);

  const Topology topology_;
  std::vector<Inbox> inboxes_;
  std::deque<Endpoint> endpoints_;
  std::map<std::pair<uint32_t, uint32_t>, Nanos> last_;  // no message overtakes an earlier one
  uint64_t messages_ = 0;
};

// The transport of one instance. Only sending is used here; the rest of the interface is not.
class SimNetwork::Endpoint final : public PeerTransport {
 public:
  Endpoint(SimNetwork& network, uint32_t number, const Clock& clock)
      : network_(network), number_(number), clock_(clock) {}

  std::string address() const override { return id_of(number_).instance; }
  void begin_life(uint64_t) override {}
  void introduce(const PeerId&, const std::string&) override {}
  void forget(const PeerId&) override {}
  Status send(const PeerId& to, std::vector<std::byte> bytes) override {
    return network_.send(number_, clock_.now(), to, std::move(bytes));
  }
  std::vector<PeerMessage> receive() override { return network_.receive(number_, clock_.now()); }
  std::vector<PeerId> lost() override { return {}; }
  void wait(Nanos) override {}
  void wake() override {}

 private:
  SimNetwork& network_;
  const uint32_t number_;
  const Clock& clock_;
};

}  // namespace kvasir
