// Estimates of what work costs, refined by real steps.
#pragma once

#include <cstdint>

#include "contract/cost_model.h"

namespace kvasir {

// observe() and take_latest() are called by the engine's thread and never block; the rest by any thread.
class CostEstimator {
 public:
  virtual ~CostEstimator() = default;

  // A step of this work took `seconds`, without its waits for transfers.
  virtual void observe(const StepWork& work, double seconds) = 0;
  // Sets `costs` to the latest model. False, and nothing changes, if the caller has it already or it is just
  // being changed.
  virtual bool take_latest(CostModel& costs) = 0;

  // Whether observations change the model.
  virtual bool learning() const = 0;
  virtual uint64_t observed() const = 0;  // steps learnt from so far
  virtual uint64_t dropped() const = 0;   // steps that were not learnt from: they came too fast
  virtual double error() const = 0;       // recent |believed - real| / real; 0: no model yet
};

}  // namespace kvasir
