// One engine in virtual time, with the client that sends it its requests.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "apps/simulate/observed_policy.h"
#include "apps/simulate/sim_cluster.h"
#include "apps/simulate/simulation.h"
#include "engine/engine.h"
#include "exec/sim/sim_executor.h"
#include "exec/sim/sim_link.h"
#include "sched/beliefs/cost_beliefs.h"

namespace kvasir {

// The part of a run that one instance serves.
struct InstanceSetup {
  uint32_t number = 0;
  std::vector<SimulatedRequest> requests;  // in the order of their arrivals; bind() brings others
  std::optional<size_t> explain;           // the index of one of those
  Nanos last_arrival = 0;                  // of the run
  // Called when a request has ended, in any way but that its client gave up: its index, and its output;
  // nothing: it failed.
  std::function<void(size_t index, Nanos at, std::optional<uint32_t> output_tokens)> ended = {};
};

// Runs one turn of its engine at a time. With several instances the caller always runs the one whose
// next_turn() is earliest, so that a turn sees all that happened before it on any instance, although its step
// ends later.
class SimulatedInstance {
 public:
  // All arguments outlive the instance. peer: null if the instance neither lends nor borrows.
  SimulatedInstance(const SimulationSetup& setup, InstanceSetup own, std::unique_ptr<Policy> policy,
                    LengthPredictor* lengths, VirtualClock& clock, SimPeer* peer);

  // A request that has waited elsewhere since its arrival comes now. Its index is that of the next record.
  void bind(const SimulatedRequest& request, Nanos now, bool explain);
  // One that waits elsewhere for ever: only a record.
  void never_bound();

  // When the next turn begins; INT64_MAX: there is nothing to wait for.
  Nanos next_turn() const;
  // REQUIRES: at >= its clock
  void take_turn(Nanos at);
  // Requests that have not ended, without those whose client gave up.
  size_t left() const { return gave_up_ ? 0 : left_; }
  bool gave_up() const { return gave_up_.has_value(); }

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
  SimExecutor::Options executor_options();
  std::unique_ptr<Policy> observed(std::unique_ptr<Policy> policy);

  void arrive();
  void expect_no_more();
  void send(size_t index, Nanos start);
  void queue(size_t index);
  Status submit(size_t index);
  void on_output(size_t index, const OutputEvent& event);
  void ended(size_t index);
  GenerationRequest request_of(size_t index) const;
  void give_up() { gave_up_ = clock_.now(); }

  const SimulationSetup& setup_;
  InstanceSetup own_;
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
  // When the client gave up the remaining requests; later output is dropped.
  std::optional<Nanos> gave_up_;
  std::optional<Nanos> ended_at_;  // when the last request did
  int idle_turns_ = 0;             // one after the other; time has not passed
  int turns_ = 0;                  // likewise, of all
};

}  // namespace kvasir
