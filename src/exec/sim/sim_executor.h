// Runs steps in virtual time: no kernel, no memory, the same Step. Thousands of steps a second.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "base/clock.h"
#include "contract/executor.h"
#include "exec/sim/sim_peers.h"
#include "exec/sim/step_load.h"
#include "exec/step_transfers.h"

namespace kvasir {

// The tokens that it samples are a function of (seed, sequence, position), so they depend on no schedule.
// Used by one thread, like any executor; moves the clock in wait().
class SimExecutor final : public Executor {
 public:
  struct Options {
    // What steps truly take.
    std::shared_ptr<const StepTimes> times = std::make_shared<LinearTimes>();
    // A step takes its time times a factor drawn for it: lognormal, of mean 1, whose logarithm has this
    // deviation. Real steps of the same load differ, too.
    double noise = 0;
    int depth = 1;
    int32_t vocab_size = 1000;
    uint64_t seed = 0;    // of tokens and noise
    uint32_t layers = 1;  // a step's time is spread over them evenly, and its moments with it
  };
  // The clock, the link and the peers outlive the executor. Nobody else moves the clock, except the link in
  // its wait(). link: null where there is none; steps then fire and wait for nothing. peers: null where there
  // are none, or what they do takes no time.
  SimExecutor(const Options& options, VirtualClock& clock, Link* link = nullptr, SimPeers* peers = nullptr)
      : options_(options), clock_(clock), peers_(peers), transfers_(link, clock) {}

  int depth() const override { return options_.depth; }
  void submit(Step step) override;
  StepResult wait() override;

  // The token that it samples for a position of a sequence where no end is forced.
  Token token(SeqId seq, uint32_t position) const;
  // The truth about one step, without what it waits for transfers and peers.
  Nanos duration(const Step& step) const;

 private:
  struct Pending {
    Step step;
    Nanos submitted;
  };

  // Takes the clock, the transfers and the peers through the step's layers; the time at which it ends.
  Nanos run(const Step& step, Nanos started);
  void move_to(Nanos time);

  const Options options_;
  VirtualClock& clock_;
  SimPeers* const peers_;
  StepTransfers transfers_;  // of the oldest pending step
  Nanos free_at_ = 0;        // when the step before that one ended
  std::deque<Pending> pending_;
};

}  // namespace kvasir
