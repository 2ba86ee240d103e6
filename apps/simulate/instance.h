// One engine in virtual time, with the client that sends it its requests.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine/beliefs.h"
#include "engine/engine.h"
#include "exec/sim/sim_executor.h"
#include "exec/sim/sim_link.h"
#include "simulate/observed_policy.h"
#include "simulate/sim_cluster.h"
#include "simulate/simulation.h"

namespace kvasir {

// Of a run, what one of its instances serves.
struct InstanceSetup {
  uint32_t number = 0;
  std::vector<SimulatedRequest> requests;  // in the order of their arrivals
  std::optional<size_t> explain;           // the index of one of those
  Nanos last_arrival = 0;                  // of the run
};

// Goes from turn to turn of its engine: whoever has several takes those of each in the order of next_turn().
// So a turn knows all that has happened before it, on whatever instance, though its step takes it ahead of
// the others.
class SimulatedInstance {
 public:
  // All that is given outlives it. peer: null where there is nobody to lend or borrow.
  SimulatedInstance(const SimulationSetup& setup, InstanceSetup own, std::unique_ptr<Policy> policy,
                    LengthPredictor* lengths, VirtualClock& clock, SimPeer* peer);

  // When the next turn begins; INT64_MAX: there is nothing to wait for.
  Nanos next_turn() const;
  // REQUIRES: at >= its clock
  void take_turn(Nanos at);
  // Requests of its own that have not ended, unless their client gave up.
  size_t left() const { return gave_up_ ? 0 : left_; }

  // K and V, to peers and back.
  uint64_t copied_bytes() const { return link_.peer_bytes(); }

  // After the last turn of all.
  SimulationOutcome finish();

 private:
  // What becomes of one request.
  class Sink final : public OutputSink {
   public:
    Sink(SimulatedInstance& instance, size_t index) : instance_(instance), index_(index) {}
    void on_output(OutputEvent event) override { instance_.on_output(index_, event); }

   private:
    SimulatedInstance& instance_;
    const size_t index_;
  };

  bool has_link() const;
  SimLink::Borrowed borrowed() const;
  SimExecutor::Options executor_options() const;
  std::unique_ptr<Policy> observed(std::unique_ptr<Policy> policy);

  void arrive();
  void expect_no_more();
  void send(size_t index);
  void queue(size_t index);
  Status submit(size_t index);
  void on_output(size_t index, const OutputEvent& event);
  void ended(size_t index);
  GenerationRequest request_of(size_t index) const;
  void give_up() { gave_up_ = clock_.now(); }

  const SimulationSetup& setup_;
  const InstanceSetup own_;
  VirtualClock& clock_;
  SimPeer* const peer_;
  SimLink link_;
  SimExecutor executor_;
  CostBeliefs costs_;
  ObservedPolicy* policy_ = nullptr;  // the engine's
  Engine engine_;

  std::vector<RequestRecord> records_;
  size_t next_ = 0;  // to arrive
  std::deque<size_t> held_;
  int64_t in_flight_ = 0;
  int64_t most_in_flight_ = 0;
  size_t left_;  // have not ended
  // When the client gave up what was left; what comes later nobody hears.
  std::optional<Nanos> gave_up_;
  std::optional<Nanos> ended_at_;  // when the last request did
  int idle_turns_ = 0;             // one after the other; time has not passed
  int turns_ = 0;                  // likewise, of all
};

}  // namespace kvasir
