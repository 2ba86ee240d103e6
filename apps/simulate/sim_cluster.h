// Simulated instances that lend each other memory: the manager code of `serve`, its messages over a simulated
// network, and what it takes to write, read and attend to what lies at a peer.
//
// Attention at a peer, in a step and a layer: the queries of all its rows go out together, each creditor
// attends to what lies there (those of one step as one batch), and the partial results come back. Meanwhile
// the rows attend to what is here. A creditor's device works at the queries of others first: its own next
// step begins so much later. Where K and V themselves are fewer bytes than queries and results, or it is
// faster for another reason, they are fetched instead (cluster/memory/ship_or_fetch.h), and attended here.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "apps/simulate/sim_network.h"
#include "apps/simulate/topology.h"
#include "base/clock.h"
#include "cluster/broker/broker.h"
#include "cluster/memory/memory_shape.h"
#include "contract/lending.h"
#include "exec/sim/sim_peers.h"
#include "exec/sim/step_load.h"

namespace kvasir {

struct ClusterSetup {
  Topology topology;
  MemoryShape shape;  // of one card, in all layers
  cluster::ProtocolSettings protocol;
  uint32_t borrowable_cells = 0;  // by each instance
  uint32_t attended_cells = 0;    // of prefixes, by each instance; and from which they are copied
  uint32_t prefix_cells = 0;
};

// Of one instance, or of all together.
struct PeerSums {
  uint64_t queries = 0;        // rows times creditors times layers
  uint64_t shipped_bytes = 0;  // queries and partial results
  uint64_t fetched_bytes = 0;  // K and V that were attended here after all
  double waited_s = 0;         // for answers
  double served_s = 0;         // of its device's time, for the queries of others
  uint32_t most_borrowed = 0;  // cells, at one time
  uint64_t granted = 0;        // cells; refused, recalled and lost likewise
  uint64_t computed = 0;       // cells that came with K and V that their creditor had computed
  uint64_t refused = 0;
  uint64_t recalled = 0;
  uint64_t lost = 0;

  void add(const PeerSums& o);
};

class SimCluster;

// What one instance has to do with the others.
class SimPeer final : public Lending, public SimPeers, private cluster::CellPlaces {
 public:
  // What is given by reference outlives it.
  SimPeer(SimCluster& all, uint32_t number, VirtualClock& clock);

  // Lending. No wake-up is needed: next_turn() says when a turn is due.
  LendingEvents turn(const LendingRequest& request, LendableCells& own) override;
  void start_anew() override;  // never: a simulation that has no memory ends
  void set_wake(std::function<void()>) override {}
  Nanos next_turn() const;

  LinkCost path(uint64_t at) const override;
  std::vector<Nanos> ask(const Step& step, Nanos now) override;
  Nanos take_served(Nanos now) override;

  // From a peer's step that begins then: so much work for this device.
  void serve(Nanos at, Nanos work);

  const cluster::Broker& broker() const { return broker_; }
  const PeerSums& sums() const { return sums_; }

 private:
  struct Share;  // of a creditor, in a step and a layer

  void map(const cluster::ContractRef& contract, uint32_t first_slot, uint32_t first_cell,
           uint32_t count) override;
  void unmap(const cluster::ContractRef&, uint32_t, uint32_t) override {}
  void unmap(const cluster::ContractRef&) override {}

  uint32_t creditor_of(uint64_t at) const;
  void price(LendingEvents& events) const;
  void count(const LendingRequest& request, const LendingEvents& events);
  void add_slice(const Step& step, std::span<const RemoteLeaves> runs, double attended_here_s,
                 std::vector<Share>& shares, double& own_s);
  double ask_layer(const Step& step, std::span<const RemoteLeaves> runs, double attended_here_s, Nanos now,
                   uint32_t layers);

  SimCluster& all_;
  const uint32_t number_;
  VirtualClock& clock_;
  cluster::Broker broker_;
  bool begun_ = false;
  std::vector<uint32_t> creditor_;  // by cell at a peer: its creditor, or its last one
  uint32_t borrowed_ = 0;
  Nanos served_until_ = 0;  // the queries of others
  PeerSums sums_;
};

class SimCluster {
 public:
  // One clock for each instance; they outlive the cluster.
  SimCluster(const ClusterSetup& setup, std::shared_ptr<const StepTimes> times,
             const std::vector<VirtualClock*>& clocks);

  SimPeer& peer(uint32_t number) { return *peers_[number]; }
  const ClusterSetup& setup() const { return setup_; }
  const StepTimes& times() const { return *times_; }
  SimNetwork& network() { return network_; }

  // The leader, which runs no model: when it has something to do, and what it does then.
  Nanos next_turn() const;
  void take_turn(Nanos at);

  const cluster::GManager& gmanager() const { return leader_.control()->gmanager(); }
  uint64_t messages() const { return network_.messages(); }
  PeerSums sums() const;
  // Whether what each debtor holds is what its creditors have lent it. Only where nothing is on its way.
  Status check_ledgers() const;

  // Tells the broker of all instances, and of the leader.
  void introduce(cluster::Broker& broker, uint32_t number, Nanos now) const;

 private:
  class NoPlaces final : public cluster::CellPlaces {
    void map(const cluster::ContractRef&, uint32_t, uint32_t, uint32_t) override {}
    void unmap(const cluster::ContractRef&, uint32_t, uint32_t) override {}
    void unmap(const cluster::ContractRef&) override {}
  };
  class NoCells final : public LendableCells {
    std::vector<Frame> take(uint32_t) override { return {}; }
    void give_back(std::span<const Frame>) override {}
    uint32_t free_cells() const override { return 0; }
    uint32_t total_cells() const override { return 0; }
  };

  const ClusterSetup setup_;
  const std::shared_ptr<const StepTimes> times_;
  SimNetwork network_;
  VirtualClock leaders_clock_;
  NoPlaces no_places_;
  NoCells no_cells_;
  cluster::Broker leader_;
  bool begun_ = false;
  std::vector<std::unique_ptr<SimPeer>> peers_;
};

}  // namespace kvasir
