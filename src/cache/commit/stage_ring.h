// The stage ring: scratch in the device's memory for K and V (or X) of layers that have no frame there. It is
// allocated slot by slot in circular order, within a step and across steps.
#pragma once

#include <cstdint>
#include <deque>

#include "contract/geometry.h"
#include "contract/link.h"
#include "contract/step.h"

namespace kvasir {

// Used by one thread. A slot holds a piece of any form: one layer of one block.
class StageRing {
 public:
  // Consecutive slots, and the layer and transfer that must end before they may be written.
  struct Slots {
    KvPlanes at;         // the first one's
    uint64_t bytes = 0;  // from one slot to the next
    uint32_t count = 0;
    StepPoint free_from = kStepBegins;  // of the step at hand
    TransferId after{};                 // in flight, from or to them; 0: none
    uint64_t use = 0;                   // for set_transfer()

    KvPlanes slot(uint32_t index) const { return {at.k + index * bytes, at.v + index * bytes}; }
  };

  // The ring lies in the device's memory from `offset` on.
  StageRing(const CacheGeometry& geometry, uint64_t offset, uint32_t slots);

  uint32_t slots() const { return slots_; }

  // Begins a step. The previous step ends before anything of this one begins. in_flight(id): the transfer has
  // not ended.
  template <typename InFlight>
  void begin_step(const InFlight& in_flight) {
    // What waits for the same end is one use from here on.
    size_t uses = 0;
    for (Use& use : uses_) {
      use.until = kStepBegins;
      if (!in_flight(use.transfer)) use.transfer = {};
      if (uses > 0 && uses_[uses - 1].transfer == use.transfer) {
        uses_[uses - 1].count += use.count;
      } else {
        uses_[uses++] = use;
      }
    }
    uses_.resize(uses);
  }
  // Takes the next slots for a layer: up to `most` consecutive slots that wait for the same end. A later
  // layer may take them when this one has attended. REQUIRES: most > 0.
  Slots take(uint32_t layer, uint32_t most);
  // This transfer writes or reads the slots. REQUIRES: they have not been taken again.
  void set_transfer(const Slots& slots, TransferId id) { uses_[slots.use - first_use_].transfer = id; }

 private:
  // Slots taken by one call.
  struct Use {
    uint32_t count = 0;
    StepPoint until = kStepBegins;
    TransferId transfer{};
  };
  const uint64_t offset_;
  const uint64_t v_offset_;
  const uint64_t slot_bytes_;
  const uint32_t slots_;
  std::deque<Use> uses_;    // all slots, starting at the next one
  uint64_t first_use_ = 0;  // the number of uses_.front()
  uint32_t next_ = 0;
};

}  // namespace kvasir
