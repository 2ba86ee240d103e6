// A simulated instance's dealings with its peers while it runs steps, in virtual time.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "contract/cost_model.h"
#include "contract/step.h"

namespace kvasir {

// Used by the engine's thread.
class SimPeers {
 public:
  virtual ~SimPeers() = default;

  // The cost of the path to the peer that lends, or last lent, a byte of borrowed memory (PeerMemory).
  virtual LinkCost path(uint64_t at) const = 0;

  // A step begins that attends to leaves at peers. Returns, by layer, how long its rows wait for answers
  // after their local attention.
  virtual std::vector<Nanos> ask(const Step& step, Nanos now) = 0;

  // A step begins. Returns the device's time that queries of peers have taken since the last call.
  virtual Nanos take_served(Nanos now) = 0;
};

}  // namespace kvasir
