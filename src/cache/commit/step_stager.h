// Assigns a place to the K and V of a step that have no frame: in the stage ring, or in frames that the step
// fills. Arms the transfers that load and store them, and the projections that compute them from X.
#pragma once

#include <span>
#include <vector>

#include "cache/commit/stage_ring.h"
#include "cache/sequences/kv_cache.h"
#include "contract/step.h"

namespace kvasir {

// The cells that the rows of one sequence read and write outside its KV frames.
struct SeqScratch {
  // One block, with sets of its layer groups.
  struct Block {
    uint32_t block = 0;            // its number in the sequence
    bool fresh = false;            // rows fill it from its first token on
    LayerSet missing;              // no KV frame
    LayerSet computed;             // rows of this step restore them
    LayerSet to_slower;            // copied to a slower tier once rows have written them
    LayerSet filled;               // of `missing`: get a frame, which becomes a copy on the device
    std::vector<uint64_t> frames;  // of `filled`, by group

    bool needs_place() const { return !(missing | computed).empty(); }
  };
  uint32_t slice = 0;            // the slice that extends its history
  std::vector<uint32_t> others;  // its other slices, which restore dropped cells
  std::span<const BlockId> ids;  // of the sequence's blocks
  std::vector<Block> blocks;     // those with missing groups or groups in `to_slower`, in order
  Form preferred = Form::kKv;    // the form to read if both exist

  // The block's entry; adds one if there is none.
  Block& at(uint32_t block);
};

// Used by the engine's thread.
class StepStager {
 public:
  // The cache outlives it. The ring lies behind the cells in the device's memory.
  explicit StepStager(KvCache& cache);

  // Completes the step's table of staged planes, its transfers, waits and projections.
  void stage(Step& step, std::span<const SeqScratch> sequences);

 private:
  // How K and V of a cell reach the place where the step reads them.
  enum class Way : uint8_t {
    kRowsFillFrame,    // rows write a frame that becomes a copy
    kRowsFillSlot,     // rows write a slot
    kRowsSendSlot,     // rows write a slot, which then goes to a slower tier
    kTransfer,         // KV is transferred into a slot
    kProjectIntoSlot,  // projected from X
    kProjectIntoFrame,
    kStayAtPeers,  // peers attend to them
  };
  // Cells of consecutive blocks that go the same way: entries [begin, end) of SeqScratch::blocks.
  struct Run {
    uint32_t begin = 0;
    uint32_t end = 0;
    LayerSet groups;
    Way way = Way::kTransfer;
    Place from;  // if they are read
    // Of those read, for the layer group at hand: where the cells begin, and whether one is being filled.
    std::vector<uint64_t> sources;
    bool filling = false;

    bool reads() const { return way >= Way::kTransfer && way <= Way::kProjectIntoFrame; }
  };
  // A sequence with its cells as runs. Those of one layer group are in the order of blocks.
  struct Work {
    const SeqScratch& of;
    std::vector<Run> runs;
  };
  // A transfer being built, of one layer or group of one sequence.
  struct Batch {
    Transfer transfer;
    std::vector<KvCache::Use> uses;
    std::vector<StageRing::Slots> slots;
  };
  // Of one sequence, what comes into the ring for a layer. A batch starts at one point.
  struct Incoming {
    Batch batch;
    StepPoint start_at = kStepBegins;
  };

  Work plan(const Step& step, const SeqScratch& s) const;
  void plan_reads(const Step& step, uint32_t entry, LayerSet groups, Work& work) const;
  static void add_run(Work& work, uint32_t entry, const LayerSet& groups, Way way, Place from = {});
  // The groups of a sequence's leaf that can be attended at peers.
  LayerSet at_peers(const Step& step, const SeqScratch& s, uint32_t entry) const;
  void share_table(Step& step, const SeqScratch& s) const;

  void stage_layer(Step& step, Work& work, uint32_t layer);
  void find_sources(const SeqScratch& s, uint32_t group, Run& run) const;
  void leave_at_peers(Step& step, const Work& work, uint32_t layer);
  void fill_frames(Step& step, const SeqScratch& s, const Run& run, uint32_t layer) const;
  void fill_slots(Step& step, const SeqScratch& s, const Run& run, uint32_t layer, Batch& out);
  void bring_into_slots(Step& step, const SeqScratch& s, const Run& run, uint32_t layer, Incoming& in);
  void project(Step& step, const SeqScratch& s, const Run& run, uint32_t layer, Incoming& in);
  // Brings the pieces of the entries from `entry` on over the link.
  void bring(Step& step, const SeqScratch& s, const Run& run, uint32_t entry, uint32_t layer,
             const StageRing::Slots& slots, Incoming& in);
  void flush(Step& step, const SeqScratch& s, uint32_t layer, Incoming& in);
  void write_back_frames(Step& step, const SeqScratch& s, uint32_t layer);
  void add(Step& step, StepPoint start_at, const SeqScratch& s, TransferPriority priority, Batch& batch);
  void add_segment(Transfer& transfer, MemoryAddress from, MemoryAddress to, uint64_t bytes) const;
  // The place of a layer in the frame that the step fills.
  KvPlanes frame_of(const SeqScratch::Block& block, uint32_t layer) const;
  const BlockMap::Copies& copies_of(const SeqScratch& s, uint32_t entry, Place place) const {
    return cache_.block(s.ids[s.blocks[entry].block]).at(place);
  }
  const BlockMap::Copy& copy_of(const SeqScratch& s, uint32_t entry, Place place, uint32_t group) const {
    return copies_of(s, entry, place).by_group[group];
  }

  KvCache& cache_;
  StageRing ring_;
  bool fills_change_ = false;  // transfers of the step being built fill copies that it might read
};

}  // namespace kvasir
