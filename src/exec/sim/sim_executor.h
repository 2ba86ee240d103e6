// Runs steps in virtual time: no kernel, no memory, the same Step. Thousands of steps a second.
#pragma once

#include <cstdint>
#include <deque>

#include "base/clock.h"
#include "contract/executor.h"
#include "exec/step_transfers.h"

namespace kvasir {

// How long a step truly takes, in microseconds: a sum over its rows and its projections. It is the
// simulator's own truth, which no policy sees. A row that passes some of the layers takes their share of its
// time; where it only writes K and V, it attends to nothing. Writing other forms beside them takes none.
struct SimTruth {
  double step_us = 200;             // of any step
  double prefill_token_us = 50;     // per row of a prefill or recomputation, in all layers
  double decode_row_us = 20;        // per decoding row, in all layers
  double history_token_us = 0.01;   // per token of history that a row attends to, in all layers
  double projected_token_us = 0.1;  // per token and layer of which K and V are made of X
};

// The tokens that it samples are a function of (seed, sequence, position), so they depend on no schedule.
// Used by one thread, like any executor; moves the clock in wait().
class SimExecutor final : public Executor {
 public:
  struct Options {
    SimTruth truth;
    int depth = 1;
    int32_t vocab_size = 1000;
    uint64_t seed = 0;
    uint32_t layers = 1;  // a step's time is spread over them evenly, and its moments with it
  };
  // The clock and the link outlive the executor. Nobody else moves the clock, except the link in its wait().
  // link: null where there is none; steps then fire and wait for nothing.
  SimExecutor(const Options& options, VirtualClock& clock, Link* link = nullptr)
      : options_(options), clock_(clock), transfers_(link, clock) {}

  int depth() const override { return options_.depth; }
  void submit(Step step) override;
  StepResult wait() override;

  // The token that it samples for a position of a sequence where no end is forced.
  Token token(SeqId seq, uint32_t position) const;
  // The truth about one step, without what it waits for transfers.
  Nanos duration(const Step& step) const;

 private:
  struct Pending {
    Step step;
    Nanos submitted;
  };

  // Takes the clock and the transfers through the step's layers; the time at which it ends.
  Nanos run(const Step& step, Nanos started);
  void move_to(Nanos time);

  const Options options_;
  VirtualClock& clock_;
  StepTransfers transfers_;  // of the oldest pending step
  Nanos free_at_ = 0;        // when the step before that one ended
  std::deque<Pending> pending_;
};

}  // namespace kvasir
