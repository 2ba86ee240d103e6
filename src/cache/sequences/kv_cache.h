// The map of copies: which tokens a sequence has, which blocks they are in, and what moves.
//
//   sequence --table--> block --cell per layer group--> a copy on each tier (state, frames)
//
// Identity (tokens, hashes, names), place (copies: cache/blocks/block_map.h) and bytes (frames of the pools)
// are three things. Whatever a sequence gives up stays pinned until the steps and transfers in flight at that
// moment have ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cache/blocks/block_hash.h"
#include "cache/blocks/block_map.h"
#include "cache/blocks/prefix_index.h"
#include "cache/sequences/borrowed_cells.h"
#include "cache/sequences/cache_options.h"
#include "cache/sequences/promises.h"
#include "cache/sequences/steps_in_flight.h"
#include "cache/tiers/disk_format.h"
#include "contract/frame_budget.h"
#include "contract/geometry.h"
#include "contract/ids.h"
#include "contract/interval.h"
#include "contract/link.h"
#include "contract/step.h"
#include "contract/step_plan.h"
#include "contract/view.h"

namespace kvasir {

// Each once, in ascending order.
inline void sort_once(std::vector<TransferId>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

// Used by one thread.
class KvCache {
 public:
  explicit KvCache(const CacheOptions& options);

  // --- Sequences. A new one waits, and holds nothing.
  void add_sequence(SeqId id, std::vector<Token> tokens, std::string_view salt);
  void append_token(SeqId id, Token token);
  // Gives up its blocks and promises. Transfers of its copies that have not begun are not needed any more.
  void remove_sequence(SeqId id);
  bool contains(SeqId id) const { return sequences_.contains(id); }
  std::span<const Token> tokens(SeqId id) const { return at(id).tokens; }
  // Its history: [0, ready_tokens) count as computed for the steps that follow.
  uint32_t ready_tokens(SeqId id) const { return at(id).ready_tokens; }
  SequenceCells summary(SeqId id) const;
  // What of a waiting sequence's prompt is cached.
  PrefixIndex::Match cached(SeqId id) const { return index_.match(id); }
  // Sequences whose summary has changed since the last call by anything but a call that names them.
  std::vector<SeqId> take_changed();

  // --- What the committer does.
  // Names the published blocks of [0, tokens). REQUIRES: they are there, and the sequence holds no block.
  void adopt(SeqId id, uint32_t tokens);
  // Keeps cells for the sequence until it allocates them.
  void promise(const Promise& promise);
  // It stops running: what is left of its promises and claims ends, and the claims on it are called. What it
  // had on loan and has lent on, its guest now owes to its host.
  void end_promises(SeqId id) { promises_.end(id); }
  // Promises what is free to those whose claims have been called, in the order in which they were made.
  // Returns them. Before the budget of the next plan is read.
  std::vector<SeqId> settle_claims();
  const std::vector<Claim>& claims() const { return promises_.claims(); }
  const Promises::ByTier& reserved_cells() const { return promises_.reserved(); }
  // Creates blocks for what of [ready, end) has none, and counts [0, end) as ready for the steps that
  // follow. Blocks that this fills from their first token on get frames of KV in `writes.kv` alone, the last
  // one in every group. REQUIRES: the plan's arithmetic said that it fits.
  void extend(SeqId id, uint32_t end, const Writes& writes, StepId step);
  // Gives up all cells and promises; the sequence waits again.
  void drop_all(SeqId id);
  // A sequence that does not run gives up all copies of a form on a tier. If it holds nothing then, that is
  // drop_all(); else what was computed of a block that is not full counts only while there is KV of it.
  void drop_form(SeqId id, Form form, Tier tier);
  // It gave up its cells at least once: what it runs next is (in part) a recomputation.
  bool was_dropped(SeqId id) const { return at(id).generation > 0; }

  // Prepares transfers that add what the change names and what is not there; `tail`: the block that is not
  // full is meant, too. One transfer for each layer group, in ascending order. Those whose bytes a step in
  // flight still writes are kept back until it has ended. Not for kAfterLayerWrites: see write_through().
  // Of KV for the device of which there is only X, nothing moves: see `projected`.
  struct Cell {
    uint32_t block = 0;  // its number in the sequence's table
    uint32_t group = 0;
  };
  struct Additions {
    std::vector<Transfer> transfers;
    std::vector<Cell> projected;
  };
  Additions add_copies(const CopyChange& change, bool tail);
  // Finds room on the slower tier for the copies of a change with kAfterLayerWrites, which rows of a step
  // write, and returns those that are to come there.
  std::vector<Cell> write_through(const CopyChange& change);
  // Gives up copies as another of their cells is ready (kWhenReady). Those on the device once the step that
  // is being made has been submitted: it may still read them.
  void release(const CopyChange& change);
  // Gives up copies of full blocks at once, also the last ones; those on the device as release() does.
  void drop(const CopyChange& change);

  // A frame that the step in the making fills beside the sequence's newest rows. When the step has ended well
  // it becomes a copy, in which the sequence has an interest.
  uint64_t begin_fill(SeqId id, uint32_t block, Place place, uint32_t group);

  // A transfer that reads or fills these copies of a sequence begins its life; they are in use until it ends.
  // `cancellable`: it is not needed if the sequence goes.
  struct Use {
    BlockId block = kNoBlock;
    Place place;
    LayerSet groups;
    bool fills = false;
  };
  TransferId begin_transfer(SeqId id, std::vector<Use> uses, bool cancellable);
  // The step in the making reads these copies where they are: they are in use until it has ended. Nothing
  // moves: no sequence has a transfer more.
  void begin_read(std::vector<Use> uses) {
    steps_.add_read(begin_transfer(SeqId{}, std::move(uses), /*cancellable=*/false));
  }
  // One transfer in the making.
  struct Addition {
    Transfer transfer;
    std::vector<Use> uses;
    StepId last_write{};  // the newest step in flight that writes what it reads
  };
  // The segments that copy a cell of a form to another tier.
  void move_cell(const BlockMap::Block& block, uint32_t group, Place from, Tier to, Addition& out) const;
  // True until transfer_ended() was called for it.
  bool in_flight(TransferId id) const { return transfers_.contains(id); }
  // kCorrupt: what it read was not there; those copies are gone.
  void transfer_ended(TransferId id, const Status& status);
  uint32_t transfers_in_flight() const { return static_cast<uint32_t>(transfers_.size()); }
  // Transfers that have become useless since the last call.
  std::vector<TransferId> take_cancelled() { return std::exchange(cancelled_, {}); }
  // Sequences that since the last call lost the last copy of a cell, or rows that were deferred: what they
  // computed from there on is gone, and their rows in steps in flight will count for nothing.
  std::vector<SeqId> take_cut_back() { return std::exchange(cut_back_, {}); }

  // --- Memory of peers (cache/sequences/borrowed_cells.h).
  bool is_borrowed(Place place, uint64_t at) const { return borrowed_.contains(place, at); }
  uint32_t borrowed_cells() const { return borrowed_.open(); }
  uint32_t closed_borrowed_cells() const { return borrowed_.closed(); }
  std::vector<uint32_t> empty_borrowed(uint32_t most) const { return borrowed_.empty(most); }
  std::vector<uint32_t> idle_borrowed() const { return borrowed_.idle(); }
  void add_borrowed(std::span<const uint32_t> cells) { borrowed_.add(cells); }
  // Nothing new is put there, and each is gone as soon as no sequence needs what lies in it. Promises that
  // there is no room for any more are broken.
  void close_borrowed(std::span<const uint32_t> cells);
  void keep_borrowed(std::span<const uint32_t> cells) { borrowed_.keep(cells); }
  // Their bytes are gone: a sequence that has lost its last copy of a cell is cut back. Then as
  // close_borrowed().
  void lose_borrowed(std::span<const uint32_t> cells);
  // Those that are gone since the last call.
  std::vector<uint32_t> take_departed() { return borrowed_.take_departed(); }
  // What of sequences lies in closed ones.
  std::vector<PeersView::Recalled> in_closed_borrowed() const;
  // Up to so many free or idle frames of KV on a tier, to be lent to peers: the bytes where they
  // begin.
  std::vector<uint64_t> lend(Tier tier, uint32_t cells);
  void take_back(Tier tier, std::span<const uint64_t> frames);
  uint32_t lent_cells(Tier tier) const { return lent_[index_of(tier)]; }
  // Leaf `leaf` of a sequence's history (ops/attention_tree.h) can be attended where it lies in a layer
  // group: its blocks are full, KV of each is on borrowed memory, or will be when what is in flight has
  // ended, and not on the device.
  bool lies_at_peers(const Holdings& who, std::span<const BlockId> table, uint32_t leaf,
                     uint32_t group) const;

  // --- What outlives its sequences.
  // Transfers that copy blocks that have become idle to slower tiers, in the background, so that
  // they can be found when the device has no room for them any more.
  std::vector<Transfer> save_idle();
  // The cells on the disk of blocks that can be found there whole; and the way back, before anything else.
  // restore() returns how many blocks it took.
  std::vector<DiskEntry> saved_cells() const;
  size_t restore(std::span<const DiskEntry> cells);

  // --- What a step needs to know.
  std::shared_ptr<const BlockTable> table(SeqId id);
  std::span<const BlockId> blocks_of(SeqId id) const { return at(id).table; }
  const BlockMap::Block& block(BlockId id) const { return map_.block(id); }
  const Holdings& holdings(SeqId id) const { return at(id).holds; }

  // --- Steps, in order.
  void step_submitted(StepId step, std::span<const StepSlice> slices);
  struct StepOutcome {
    std::vector<SeqId> void_rows;     // sequences whose rows count for nothing: deferred, or spoilt
    std::vector<Transfer> transfers;  // that were kept back for it
  };
  // The oldest step has ended. `ok`: what it wrote is valid but for the deferred sequences; blocks that it
  // filled become findable.
  StepOutcome step_ended(StepId step, bool ok, std::span<const SeqId> deferred);

  FrameBudget budget(Tier tier) const;
  const BlockMap& map() const { return map_; }
  const CacheGeometry& geometry() const { return options_.geometry; }
  const CacheOptions& options() const { return options_; }

  // Counts everything again from the ground: names, interests, pins, idle blocks, frames, promises, hashes.
  Status check_integrity() const;

 private:
  struct Sequence {
    std::vector<Token> tokens;
    std::vector<BlockHash> hashes;  // of the full blocks of known tokens; [0] is the chain's root
    std::vector<BlockId> table;
    Holdings holds;
    std::shared_ptr<BlockTable> frames;  // of the table's blocks; see Holdings::table_changed
    uint32_t ready_tokens = 0;           // when the steps submitted so far have ended
    uint32_t sealed_blocks = 0;          // full and published, or found to be published already
    std::vector<TransferId> transfers;   // of its copies, in flight, in the order in which they began
    uint64_t generation = 0;             // raised by drop_all(): what older steps wrote counts for nothing
#if defined(KVASIR_MUTANTS)
    BlockTable stale_frames;
#endif
  };
  struct TransferRecord {
    SeqId seq;
    std::vector<Use> uses;
    bool cancellable;
    bool saves = false;  // an idle block
  };

  Sequence& at(SeqId id);
  const Sequence& at(SeqId id) const;
  uint32_t block_tokens() const {
    return options_.geometry.block_tokens;
  }
  struct Loser {
    BlockId block;
    LayerSet groups;
    SeqId seq;
  };
  void use(const Use& use, TransferId transfer);
  void note_losers(const Use& use, std::vector<Loser>& losers) const;
  std::vector<std::pair<SeqId, BlockId>> lost_by(std::span<const Loser> losers) const;
  // These copies are lost; a sequence that has lost its last copy of a cell is cut back.
  void discard_copies(std::span<const Use> copies);
  // What is to be done with a block to add copies of some groups at a place.
  struct BlockAddition {
    uint32_t number = 0;  // of the block in the table
    BlockId id = kNoBlock;
    LayerSet added;                       // an interest in these
    std::array<LayerSet, kTiers> from{};  // of those: what has to move, by where it comes from
    LayerSet nowhere;                     // of these there is nothing that could be copied
  };
  BlockAddition addition_of(const Sequence& seq, uint32_t block, const LayerSet& groups, Place to) const;
  void add_moves(const BlockAddition& part, uint32_t group, Place to, Addition& out) const;
  void end_fill(const StepsInFlight::Fill& fill, bool ok);
  void find_dropped(const Sequence& seq, SequenceCells& s) const;
  uint32_t first_device_block(const Sequence& seq) const;
  uint32_t blocks_at_peers(const Sequence& seq) const;
  bool being_written(const BlockMap::Block& block) const;
  void pin_for_newest_step(BlockId id);
  void give_up_blocks(Sequence& seq);
  bool has_kv(const Sequence& seq, BlockId id) const;
  void cut_back(Sequence& seq, uint32_t tokens);
  void lose(SeqId id, BlockId block);
  void spoil_steps_in_flight(SeqId id);
  void seal(SeqId id, Sequence& seq, uint32_t done_tokens);
  void update_hashes(Sequence& seq) const;
  void watch(SeqId id, Sequence& seq);
  // Completes the table of frames from a block on.
  void fill_table(Sequence& seq, size_t first_block) const;
  bool tail_busy(const Sequence& seq) const;

  const CacheOptions options_;
  PrefixIndex index_;
  BlockMap map_;
  std::unordered_map<SeqId, Sequence> sequences_;
  StepsInFlight steps_;
  std::unordered_map<TransferId, TransferRecord> transfers_;
  std::vector<TransferId> cancelled_;
  std::vector<SeqId> touched_;
  std::vector<SeqId> cut_back_;
  uint64_t next_transfer_ = 1;
  Promises promises_;
  std::deque<BlockId> to_be_saved_;  // when fewer are
  uint32_t saves_in_flight_ = 0;
  std::array<uint32_t, kTiers> lent_{};
  BorrowedCells borrowed_;
};

}  // namespace kvasir
