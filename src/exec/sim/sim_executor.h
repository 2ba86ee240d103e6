// Runs steps in virtual time: no kernel, no memory, the same Step. Thousands of steps a second.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "base/clock.h"
#include "contract/executor.h"
#include "exec/sim/sim_link.h"
#include "exec/sim/sim_peers.h"
#include "exec/sim/step_load.h"
#include "exec/step_transfers.h"

namespace kvasir {

// Sampled tokens are a function of (seed, sequence, position), so they do not depend on the schedule. Used by
// one thread, like any executor; moves the clock in wait().
class SimExecutor final : public Executor {
 public:
  struct Options {
    // The true times of steps.
    std::shared_ptr<const StepTimes> times = std::make_shared<LinearTimes>();
    // Real steps of equal load differ: a step's time is multiplied by a lognormal factor of mean 1 whose
    // logarithm has this standard deviation.
    double noise = 0;
    int depth = 1;
    int32_t vocab_size = 1000;
    uint64_t seed = 0;    // of tokens and noise
    uint32_t layers = 1;  // a step's time and its points are spread evenly over them
    // The link over which the cards exchange data, after the attention of each layer; null: they have a
    // network of their own. It outlives the executor.
    SimLink* collectives = nullptr;
    bool transfers_yield = false;  // SimLink::collective()
    // Rows that restore dropped cells run beside the rest of their step, and neither slows the other: the
    // greater of the two times, in place of one pass. No device does that; it bounds what fused kernels give.
    bool restores_beside = false;
  };
  // The clock, the link and the peers outlive the executor. Only the executor moves the clock, and the link
  // in its wait(). link: null where there is none; steps then have no transfers. peers: null where there are
  // none, or where their work takes no time.
  SimExecutor(const Options& options, VirtualClock& clock, Link* link = nullptr, SimPeers* peers = nullptr)
      : options_(options), clock_(clock), peers_(peers), transfers_(link, clock) {}

  int depth() const override { return options_.depth; }
  void submit(Step step) override;
  StepResult wait() override;

  // The token that it samples at a position of a sequence, unless an end is forced there.
  Token token(SeqId seq, uint32_t position) const;
  // The true time of one step, without its waits for transfers and peers.
  Nanos duration(const Step& step) const;

 private:
  struct Pending {
    Step step;
    Nanos submitted;
  };

  // Takes the clock, the transfers and the peers through the step's layers. Returns the time of its end.
  Nanos run(const Step& step, Nanos started);
  // The part of a step's time in which the cards exchange data over the link, if nothing else moves there.
  Nanos collective_time(const Step& step, Nanos time) const;
  void move_to(Nanos time);

  const Options options_;
  VirtualClock& clock_;
  SimPeers* const peers_;
  StepTransfers transfers_;  // of the oldest pending step
  Nanos free_at_ = 0;        // when the step before that one ended
  std::deque<Pending> pending_;
};

}  // namespace kvasir
