// The steps that were submitted and have not ended: the writes of each, and the blocks pinned until it ends.
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

// Keeps records only; pins and frees nothing itself. Used by one thread.
class StepsInFlight {
 public:
  // The rows of one slice.
  struct Part {
    SeqId seq{};
    Interval rows;
    uint64_t generation = 0;  // of the sequence when the step was submitted
    bool restores = false;    // dropped cells, recomputed
    bool spoilt = false;      // cells that it read or wrote were lost, or never computed
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
    std::vector<BlockId> pinned;      // given up, wholly or in part, while this was the newest step
    std::vector<Transfer> transfers;  // to be started when it has ended
    std::vector<TransferId> reads;    // this step's reads of borrowed memory, which end with it
    std::vector<Fill> fills;
  };

  bool empty() const { return records_.empty(); }

  // --- The step being built.
  void add_fill(const Fill& fill) { next_.fills.push_back(fill); }
  void add_read(TransferId read) { next_.reads.push_back(read); }
  void submit(StepId id, std::vector<Part> parts);

  // --- Pins the block until the newest step has ended. False: it is pinned already, or no step is in flight.
  bool pin(BlockId block);

  // Whether a step in flight writes to a block whose last write is this step.
  bool is_in_flight(StepId step) const { return !empty() && raw(step) >= raw(records_.front().id); }
  // The transfer starts when the step has ended. False: it is not in flight.
  bool keep_back(StepId step, Transfer& transfer);

  // The rows of the sequence in all steps in flight do not count.
  void spoil(SeqId seq);
  // Where the first rows of the sequence that still count begin; or `end`.
  uint32_t first_row(SeqId seq, uint64_t generation, uint32_t end) const;

  // Where the first rows of the sequence begin, those that restore cells included; or `end`.
  uint32_t first_position(SeqId seq, uint32_t end) const;

  // Frames that will become copies, including those of the step being built.
  std::array<uint32_t, kPlaces> frames() const;
  const std::deque<Record>& records() const { return records_; }

  // The oldest step has ended. REQUIRES: it has this id.
  Record end(StepId id);

 private:
  std::deque<Record> records_;
  Record next_;
};

}  // namespace kvasir
