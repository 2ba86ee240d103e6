// The stage ring: scratch in the device's memory through which K and V of a layer pass that have no frame
// there. It is handed out slot by slot, round and round, within a step and from one step to the next.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/geometry.h"
#include "contract/link.h"
#include "contract/step.h"

namespace kvasir {

// Used by one thread. A slot holds a piece of any form: one layer of one block.
class StageRing {
 public:
  // A slot, and what has to be over before it may be written.
  struct Slot {
    KvPlanes at;
    StepMoment free_from = kStepBegins;  // of the step at hand
    TransferId after{};                  // the last transfer from or to it; 0: none
    uint32_t index = 0;
  };

  // The ring lies in the device's memory from `offset` on.
  StageRing(const CacheGeometry& geometry, uint64_t offset, uint32_t slots);

  uint32_t slots() const { return static_cast<uint32_t>(used_.size()); }

  // The step before has ended when anything of this one begins.
  void begin_step();
  // The next slot, for a layer; later layers may have it when that one has attended.
  Slot take(uint32_t layer);
  // This transfer writes or reads the slot.
  void set_transfer(const Slot& slot, TransferId id) { used_[slot.index].transfer = id; }

 private:
  struct Use {
    StepMoment until = kStepBegins;
    TransferId transfer{};
  };
  const uint64_t offset_;
  const uint64_t plane_bytes_;
  const uint64_t slot_bytes_;
  std::vector<Use> used_;
  uint32_t next_ = 0;
};

}  // namespace kvasir
