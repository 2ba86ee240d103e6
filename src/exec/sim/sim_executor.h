// Runs steps in virtual time: no kernel, no memory, the same Step. Thousands of steps a second.
#pragma once

#include <cstdint>
#include <deque>

#include "base/clock.h"
#include "contract/executor.h"

namespace kvasir {

// How long a step truly takes, in microseconds: a sum over its rows. It is the simulator's own truth, which
// no policy sees.
struct SimTruth {
  double step_us = 200;            // of any step
  double prefill_token_us = 50;    // per row of a prefill or recomputation
  double decode_row_us = 20;       // per decoding row
  double history_token_us = 0.01;  // per token of history that a row attends to
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
  };
  // The clock outlives the executor, and nobody else moves it.
  SimExecutor(const Options& options, VirtualClock& clock) : options_(options), clock_(clock) {}

  int depth() const override { return options_.depth; }
  void submit(Step step) override;
  StepResult wait() override;

  // The token that it samples for a position of a sequence.
  Token token(SeqId seq, uint32_t position) const;
  // The truth about one step.
  Nanos duration(const Step& step) const;

 private:
  const Options options_;
  VirtualClock& clock_;
  Nanos free_at_ = 0;  // when the device has done what was submitted
  std::deque<StepResult> pending_;
};

}  // namespace kvasir
