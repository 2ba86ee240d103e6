// Gives what rows read and write without a frame of its own a place: in the stage ring, or in frames that the
// step fills. It arms the transfers that bring and take it, and the projections that make K and V of X.
#pragma once

#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/stage_ring.h"
#include "contract/step.h"

namespace kvasir {

// What the rows of one sequence read and write beyond the frames of KV that it holds. Tables are by block.
struct SeqScratch {
  uint32_t slice = 0;            // the slice that goes on from its history
  std::vector<uint32_t> others;  // its other slices: they compute dropped cells again
  std::span<const BlockId> blocks;
  std::vector<LayerSet> lacking;              // groups without a frame of KV
  std::vector<LayerSet> computed;             // groups that rows of this step compute again
  std::vector<LayerSet> to_slower;            // groups that go to a slower tier when rows have written them
  std::vector<bool> fresh;                    // rows fill the block from its first token on
  std::vector<std::vector<uint64_t>> filled;  // frames that become KV on the device, by group; empty: none
  Form preferred = Form::kKv;                 // where both could be read

  bool fills(uint32_t block, uint32_t group) const {
    return !filled[block].empty() && filled[block][group] != KvPlanes::kAbsent;
  }
  // Somewhere there is no frame, or not the one that is read.
  bool passes_ring() const;
};

// Used by the engine's thread.
class StepStager {
 public:
  // Both outlive it. The ring lies behind the cells in the device's memory.
  explicit StepStager(KvCache& cache);

  // Completes the step's table of staged planes, its firings, waits, restarts and projections.
  void stage(Step& step, std::span<const SeqScratch> sequences);

 private:
  // Transfers of one layer, or group, of one sequence in the making.
  struct Batch {
    Transfer transfer;
    std::vector<KvCache::Use> uses;
    std::vector<StageRing::Slot> slots;
  };
  // Of one sequence, what comes into the ring for a layer; those that may begin at one moment go together.
  struct Incoming {
    Batch batch;
    StepMoment moment = kStepBegins;
  };

  void share_table(Step& step, const SeqScratch& s) const;
  void restart_rows(Step& step, const SeqScratch& s, uint32_t layer, Incoming& in);
  void stage_layer(Step& step, const SeqScratch& s, uint32_t layer);
  // Where whole leaves of the history lie at peers, they are attended there.
  void leave_at_peers(Step& step, const SeqScratch& s, uint32_t layer, std::vector<bool>& at_peers);
  void take_slot_for_rows(Step& step, const SeqScratch& s, uint32_t layer, uint32_t block, Batch& out);
  void read_block(Step& step, const SeqScratch& s, uint32_t layer, uint32_t block, Incoming& in);
  void project(Step& step, const SeqScratch& s, uint32_t layer, uint32_t block, Place from, KvPlanes to,
               Incoming& in);
  // Brings a piece to a slot over the link.
  void bring(Step& step, const SeqScratch& s, uint32_t layer, uint32_t block, Place from,
             const StageRing::Slot& slot, Incoming& in);
  void flush(Step& step, const SeqScratch& s, uint32_t layer, Incoming& in);
  void write_back_frames(Step& step, const SeqScratch& s, uint32_t layer);
  void fire(Step& step, StepMoment moment, const SeqScratch& s, TransferPriority priority, Batch& batch);
  // Where K and V of a cell without a frame are read from.
  Place source_of(const Step& step, const SeqScratch& s, uint32_t block, uint32_t group) const;
  KvPlanes& staged(Step& step, const SeqScratch& s, uint32_t layer, uint32_t block) const;

  KvCache& cache_;
  StageRing ring_;
};

}  // namespace kvasir
