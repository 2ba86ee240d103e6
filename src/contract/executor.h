// Runs steps: on a CPU, on a GPU, or in virtual time. All run the same Step.
#pragma once

#include "contract/step.h"

namespace kvasir {

// Called by the engine's thread only.
class Executor {
 public:
  virtual ~Executor() = default;

  // How many steps may be submitted before the first is waited for: 1 on a CPU, 2 on a GPU.
  virtual int depth() const = 0;

  // Starts a step. Steps run in the order of submission; the caller keeps to depth().
  virtual void submit(Step step) = 0;

  // Blocks until the oldest submitted step ends. REQUIRES: one is in flight.
  virtual StepResult wait() = 0;
};

}  // namespace kvasir
