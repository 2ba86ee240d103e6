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
    Place from;                 // if they are read
    uint32_t first_source = 0;  // of those, in sources_
    bool filling = false;       // a transfer may be filling one of those
    // If the frames of those lie at equal distances: that of an entry in a group is at
    // first_frame + (entry - begin) * by_entry + group * by_group.
    bool even = false;
    uint64_t first_frame = 0, by_entry = 0, by_group = 0;
    bool follow = true;  // the blocks of the entries follow one another

    bool reads() const { return way >= Way::kTransfer && way <= Way::kProjectIntoFrame; }
  };
  // A sequence with its cells as runs: [first_run, end_run) of runs_. Those of one layer group are in the
  // order of blocks.
  struct Work {
    const SeqScratch* of = nullptr;
    uint32_t first_run = 0;
    uint32_t end_run = 0;
    bool writes_back = false;               // frames to a slower tier
    KvCache::SharedReads* reads = nullptr;  // by the transfers of all layers; null as long as there is none
  };
  // A transfer being built, of one layer or group of one sequence.
  struct Batch {
    StepPoint start_at = kStepBegins;
    Transfer transfer;
    std::vector<KvCache::Use> uses;
    std::vector<StageRing::Slots> slots;
    bool shares_reads = false;  // Work::reads

    void clear();
  };

  void plan(Step& step, std::span<const SeqScratch> sequences);
  void plan(const Step& step, Work& work);
  void plan_reads(const Step& step, uint32_t entry, LayerSet groups, const Work& work);
  void add_run(const Work& work, uint32_t entry, const LayerSet& groups, Way way, Place from = {});
  void find_sources(const Work& work, bool fills_change);
  void find_distances(Run& run) const;
  std::span<const Run> runs_of(const Work& work) const {
    return std::span(runs_).subspan(work.first_run, work.end_run - work.first_run);
  }
  // The groups of a sequence's leaf that can be attended at peers.
  LayerSet at_peers(const Step& step, const SeqScratch& s, uint32_t entry) const;
  void share_table(Step& step, const SeqScratch& s) const;

  void stage_layer(Step& step, Work& work, uint32_t layer);
  void leave_at_peers(Step& step, const Work& work, uint32_t layer);
  void fill_frames(Step& step, const SeqScratch& s, const Run& run, uint32_t layer) const;
  void fill_slots(Step& step, const SeqScratch& s, const Run& run, uint32_t layer);
  void bring_into_slots(Step& step, Work& work, const Run& run, uint32_t layer);
  void project(Step& step, Work& work, const Run& run, uint32_t layer);
  // The entries from `entry` on have these slots as their places in the layer.
  void place(Step& step, const SeqScratch& s, const Run& run, uint32_t entry, uint32_t layer,
             const StageRing::Slots& slots) const;
  // Brings the pieces of the entries from `entry` on over the link.
  void bring(Step& step, Work& work, const Run& run, uint32_t entry, uint32_t layer,
             const StageRing::Slots& slots);
  void bring_each(const Work& work, const Run& run, uint32_t entry, uint32_t group, uint64_t in_cell,
                  const StageRing::Slots& slots);
  void flush(Step& step, Work& work, uint32_t layer);
  void write_back_frames(Step& step, Work& work, uint32_t layer);
  // Adds the batch to the step's transfers, and empties it.
  void add(Step& step, Work& work, TransferPriority priority, Batch& batch);
  KvCache::SharedReads* reads_of(const Work& work);
  // The place of a layer in the frame that the step fills.
  KvPlanes frame_of(const SeqScratch::Block& block, uint32_t layer) const;
  const BlockMap::Copies& source(const Run& run, uint32_t entry) const {
    return *sources_[run.first_source + entry - run.begin];
  }
  static BlockId block_of(const Work& work, uint32_t entry) {
    return work.of->ids[work.of->blocks[entry].block];
  }
  const BlockMap::Copies& copies_of(const SeqScratch& s, uint32_t entry, Place place) const {
    return cache_.block(s.ids[s.blocks[entry].block]).at(place);
  }
  BlockFrames::Frame copy_of(const SeqScratch& s, uint32_t entry, Place place, uint32_t group) const {
    return copies_of(s, entry, place).by_group[group];
  }

  KvCache& cache_;
  StageRing ring_;
  // Of the step being built; what they have allocated serves the next one.
  std::vector<Work> works_;
  std::vector<Run> runs_;
  std::vector<const BlockMap::Copies*> sources_;
  Batch in_;   // what comes into the ring for a layer of one sequence
  Batch out_;  // what leaves it
};

}  // namespace kvasir
