// The steps that were submitted and have not ended: what each writes, and what is held until it ends.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "cache/blocks/place.h"
#include "contract/ids.h"
#include "contract/interval.h"
#include "contract/link.h"
#include "contract/step.h"

namespace kvasir {

// Records only: it pins and frees nothing itself. Used by one thread.
class StepsInFlight {
 public:
  // The rows of one slice.
  struct Part {
    SeqId seq{};
    Interval rows;
    uint64_t generation = 0;  // of the sequence when the step was submitted
    bool restores = false;    // dropped cells, computed again
    bool spoilt = false;      // what it read or wrote was lost meanwhile, or never computed
  };
  // A frame that becomes a copy when its step has ended.
  struct Fill {
    SeqId seq{};
    uint64_t generation = 0;
    uint32_t block = 0;  // of the sequence's table
    BlockId id = kNoBlock;
    Place place;
    uint32_t group = 0;
    uint64_t at = 0;
  };
  struct Record {
    StepId id{};
    std::vector<Part> parts;
    std::vector<BlockId> pinned;      // given up, or less wanted, while this was the newest step
    std::vector<Transfer> transfers;  // to be started when it has ended
    std::vector<TransferId> reads;    // of borrowed memory, by this step, which end with it
    std::vector<Fill> fills;
  };

  bool empty() const { return records_.empty(); }

  // --- The step in the making.
  void add_fill(const Fill& fill) { next_.fills.push_back(fill); }
  void add_read(TransferId read) { next_.reads.push_back(read); }
  void submit(StepId id, std::vector<Part> parts);

  // --- Until the newest step has ended, the block is pinned. False: it is already, or no step is in flight.
  bool pin(BlockId block);

  // A step in flight writes to a block whose newest step is this one.
  bool is_in_flight(StepId step) const { return !empty() && raw(step) >= raw(records_.front().id); }
  // The transfer starts when the step has ended. False: it is not in flight.
  bool keep_back(StepId step, Transfer& transfer);

  // The rows of the sequence in all steps in flight count for nothing.
  void spoil(SeqId seq);
  // Where the first rows of the sequence that still count begin; or `end`.
  uint32_t first_row(SeqId seq, uint64_t generation, uint32_t end) const;

  // Frames that are to become copies, those of the step in the making included.
  std::array<uint32_t, kPlaces> frames() const;
  const std::deque<Record>& records() const { return records_; }

  // The oldest step has ended. REQUIRES: it has this id.
  Record end(StepId id);

 private:
  std::deque<Record> records_;
  Record next_;
};

}  // namespace kvasir
