// What a simulated instance has to do with its peers while it runs steps, in virtual time.
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

  // The way to the memory behind a byte of borrowed memory (PeerMemory), which is lent still or was once.
  virtual LinkCost path(uint64_t at) const = 0;

  // A step begins that attends to leaves at peers. By layer: how long its rows wait for what comes back,
  // beyond what they attend to here meanwhile.
  virtual std::vector<Nanos> ask(const Step& step, Nanos now) = 0;

  // A step begins: so much of the device's time went to the queries of peers since the last call, and is
  // missing here.
  virtual Nanos take_served(Nanos now) = 0;
};

}  // namespace kvasir
