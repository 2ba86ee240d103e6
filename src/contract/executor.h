// Runs steps: on a CPU, on a GPU, or in virtual time. All run the same Step.
#pragma once

#include "base/clock.h"
#include "contract/step.h"

namespace kvasir {

// Called by the engine's thread only, except give_up_waiting().
//
// A step begins when those before it have ended; its transfers are fired as it passes through its moments.
// Each transfer of a step has been started when wait() returns the step, even if the step failed.
//
// A step for which there is no memory fails with kExhausted. A call of submit() that throws std::bad_alloc
// has submitted nothing; one of wait() has ended the step, of whose transfers some may never have been
// started.
//
// Slices whose transfers do not end in time are deferred. Later steps that were submitted before wait()
// reported this may hold rows of the same sequence. Their history is missing, so the executor defers them as
// well and reports this in their results.
class Executor {
 public:
  virtual ~Executor() = default;

  // How many steps may be submitted before the first is waited for: 1 on a CPU, 2 on a GPU.
  virtual int depth() const = 0;

  // Starts a step. Steps run in the order of submission; the caller keeps to depth().
  virtual void submit(Step step) = 0;

  // Blocks until the oldest submitted step ends. REQUIRES: one is in flight.
  virtual StepResult wait() = 0;

  // The cache knows what came of all steps that wait() has returned, and the transfers that waited for their
  // ends have been started: later steps may wait for those. The next submit() or wait() says so, too.
  virtual void step_settled() {}

  // When the step that runs last came on: at its beginning, or at the end of a part of it, by the executor's
  // clock; 0: unknown. Any thread; takes no lock.
  virtual Nanos came_on_at() const { return 0; }

  // The engine stops: after the current wait, steps no longer wait for transfers and defer the slices that
  // would. Thread-safe.
  virtual void give_up_waiting() {}
};

}  // namespace kvasir
