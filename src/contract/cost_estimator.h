// Belief about what work costs that real steps refine.
#pragma once

#include <cstdint>

#include "contract/cost_model.h"

namespace kvasir {

// observe() and take_latest() are called by the engine's thread and never block; the rest by any thread.
class CostEstimator {
 public:
  virtual ~CostEstimator() = default;

  // A step of this work took so many seconds, waits for transfers aside.
  virtual void observe(const StepWork& work, double seconds) = 0;
  // Sets `costs` to the latest model. False, and nothing changes: the caller has it already, or it is being
  // changed at this moment.
  virtual bool take_latest(CostModel& costs) = 0;

  // Whether what is observed changes the model.
  virtual bool learning() const = 0;
  virtual uint64_t observed() const = 0;  // steps learnt from so far
  virtual uint64_t dropped() const = 0;   // steps that came too fast to be learnt from
  virtual double error() const = 0;       // |believed - real| / real of late; 0: nothing was believed yet
};

}  // namespace kvasir
