// Runs steps: on a CPU, on a GPU, or in virtual time. All run the same Step.
#pragma once

#include "contract/step.h"

namespace kvasir {

// Called by the engine's thread only, but for give_up_waiting().
//
// A step begins when those before it have ended; its transfers are fired as it passes through its moments.
// Whatever becomes of a step, also if it fails, each of its firings has been started when wait() returns it.
//
// Slices whose transfers do not end in time are deferred. Rows of the same sequence in steps that were
// submitted before wait() told so lack their history, so the executor defers them of its own accord, and
// their results say so.
class Executor {
 public:
  virtual ~Executor() = default;

  // How many steps may be submitted before the first is waited for: 1 on a CPU, 2 on a GPU.
  virtual int depth() const = 0;

  // Starts a step. Steps run in the order of submission; the caller keeps to depth().
  virtual void submit(Step step) = 0;

  // Blocks until the oldest submitted step ends. REQUIRES: one is in flight.
  virtual StepResult wait() = 0;

  // The engine stops: from now on steps wait for transfers no longer, but for the one wait at hand, and defer
  // what would. Any thread.
  virtual void give_up_waiting() {}
};

}  // namespace kvasir
