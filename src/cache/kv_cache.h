// The map of copies: which tokens a sequence has, which blocks they are in, and what moves.
//
//   sequence --table--> block --cell per layer group--> a copy on each tier (state, frames)
//
// Identity (tokens, hashes, names), place (copies: cache/block_map.h) and bytes (frames of the pools) are
// three things. Whatever a sequence gives up stays pinned until the steps and transfers in flight at that
// moment have ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "cache/block_hash.h"
#include "cache/block_map.h"
#include "cache/disk_format.h"
#include "cache/prefix_index.h"
#include "contract/frame_budget.h"
#include "contract/geometry.h"
#include "contract/ids.h"
#include "contract/interval.h"
#include "contract/link.h"
#include "contract/step.h"
#include "contract/step_plan.h"
#include "contract/view.h"

namespace kvasir {

struct CacheOptions {
  CacheGeometry geometry;
  uint64_t device_bytes = 0;  // of cells on the device tier
  uint64_t host_bytes = 0;    // of the host tier; 0: there is none
  uint64_t disk_bytes = 0;    // of the disk tier; 0: there is none
  // The most that may be borrowed from peers: behind its own memory, the host tier has it as long as it is
  // lent.
  uint64_t borrowed_bytes = 0;
  // Of the stage ring, in the device's memory behind its frames; 0: there is none.
  uint64_t stage_bytes = 0;
  bool prefix_caching = true;
  std::string numerics_id;  // part of every block's hash

  // Blocks of which the stage ring holds one layer.
  uint32_t stage_blocks() const {
    return static_cast<uint32_t>(stage_bytes / geometry.largest_piece_bytes());
  }
  uint64_t tier_bytes(Tier tier) const {
    return tier == Tier::kDevice ? device_bytes
                                 : (tier == Tier::kHost ? host_and_borrowed_bytes() : disk_bytes);
  }
  // Cells of KV that a tier holds in all.
  uint32_t cells(Tier tier) const { return TierShape::of(geometry, tier, tier_bytes(tier)).cells(Form::kKv); }
  uint64_t host_and_borrowed_bytes() const {
    return borrowed_bytes == 0 ? host_bytes : borrowed_begin() + borrowed_bytes;
  }
  Tier slower_tier() const { return tier_bytes(Tier::kHost) > 0 ? Tier::kHost : Tier::kDisk; }
  // Cells of the host tier that are its own, and the byte of the tier at which borrowed ones begin. There is
  // nothing but KV where memory is borrowed, so that a cell is a slab.
  uint32_t own_host_cells() const { return static_cast<uint32_t>(host_bytes / geometry.kv_cell_bytes()); }
  uint32_t borrowable_cells() const {
    return static_cast<uint32_t>(borrowed_bytes / geometry.kv_cell_bytes());
  }
  uint64_t borrowed_begin() const { return own_host_cells() * geometry.kv_cell_bytes(); }
};

// Each once, in ascending order.
inline void sort_once(std::vector<TransferId>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

// Used by one thread.
class KvCache {
 public:
  explicit KvCache(const CacheOptions& options);

  // What a View says about one sequence's cells; see contract/view.h.
  struct Summary {
    uint32_t ready_tokens = 0;
    uint32_t blocks = 0;
    std::array<uint32_t, kPlaces> cells{};
    std::array<uint32_t, kPlaces> own_cells{};
    uint32_t leaving_cells = 0;
    LayerSet device_groups;
    uint32_t resident_blocks = 0;
    uint32_t first_device_block = 0;
    uint32_t peer_blocks = 0;
    Interval dropped;
    uint32_t bare_cells = 0;
    uint8_t dropped_first_group = 0;
    uint8_t dropped_end_group = 0;
    uint8_t restart_group = 0;
    bool tail_resident = true;
    bool tail_busy = false;
    uint32_t transfers = 0;
    PrefixIndex::Match cached;
    std::array<uint32_t, kTiers> promised_cells{};
  };

  // --- Sequences. A new one waits, and holds nothing.
  void add_sequence(SeqId id, std::vector<Token> tokens, std::string_view salt);
  void append_token(SeqId id, Token token);
  // Gives up its blocks and promises. Transfers of its copies that have not begun are not needed any more.
  void remove_sequence(SeqId id);
  bool contains(SeqId id) const { return sequences_.contains(id); }
  std::span<const Token> tokens(SeqId id) const { return at(id).tokens; }
  // Its history: [0, ready_tokens) count as computed for the steps that follow.
  uint32_t ready_tokens(SeqId id) const { return at(id).ready_tokens; }
  // Rows of these tokens compute dropped cells again: they end within the history. The others of a plan end
  // with it. REQUIRES: extend() has been called for the sequence's rows.
  bool computes_again(SeqId id, Interval tokens) const { return tokens.end < at(id).ready_tokens; }
  Summary summary(SeqId id) const;
  // Sequences whose summary was changed by somebody else's doings since the last call.
  std::vector<SeqId> take_changed();

  // --- What the committer does.
  // Names the published blocks of [0, tokens). REQUIRES: they are there, and the sequence holds no block.
  void adopt(SeqId id, uint32_t tokens);
  // Keeps cells for the sequence until it allocates them.
  void promise(const Promise& promise);
  // It stops running: what is left of its promises and claims ends, and the claims on it are called. What it
  // had on loan and has lent on, its guest now owes to its host.
  void end_promises(SeqId id);
  // Promises what is free to those whose claims have been called, in the order in which they were made.
  // Returns them. Before the budget of the next plan is read.
  std::vector<SeqId> settle_claims();
  const std::vector<Claim>& claims() const { return claims_; }
  const std::array<uint32_t, kTiers>& reserved_cells() const { return reserved_cells_; }
  // Names new blocks for what [ready, end) still lacks, and counts [0, end) as ready for the steps that
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
  void leave(const CopyChange& change);
  // Gives up copies of full blocks at once, also the last ones; those on the device as leave() does.
  void drop(const CopyChange& change);

  // A frame that the step in the making fills beside the sequence's newest rows. When the step has ended well
  // it becomes a copy, in which the sequence has an interest.
  uint64_t begin_fill(SeqId id, uint32_t block, Place place, uint32_t group);

  // A transfer that reads or fills these copies of a sequence begins its life; they are in use until it ends.
  // `cancellable`: nobody needs it if the sequence goes.
  struct Use {
    BlockId block = kNoBlock;
    Place place;
    uint32_t group = 0;
    bool fills = false;
  };
  TransferId begin_transfer(SeqId id, const std::vector<Use>& uses, bool cancellable);
  // The step in the making reads these copies where they are: they are in use until it has ended. Nothing
  // moves: no sequence has a transfer more.
  void begin_read(const std::vector<Use>& uses) {
    next_reads_.push_back(begin_transfer(SeqId{}, uses, /*cancellable=*/false));
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
  // Transfers that nobody wants any more since the last call.
  std::vector<TransferId> take_cancelled() { return std::exchange(cancelled_, {}); }
  // Sequences that since the last call lost the last copy of a cell, or rows that were deferred: what they
  // computed from there on is gone, and their rows in steps in flight will count for nothing.
  std::vector<SeqId> take_cut_back() { return std::exchange(cut_back_, {}); }

  // --- Memory of peers. Borrowed cells of KV are numbered from 0 and lie behind the host tier's own, one
  // after the other. Those that are not there are given to nobody.
  void add_borrowed(std::span<const uint32_t> cells);
  // Their peer wants them back, or we give them back: nothing new is put there, and each is gone as soon as
  // nobody needs what lies in it. Of some it is true already; no cell is an error.
  void close_borrowed(std::span<const uint32_t> cells);
  // Their bytes are gone: whoever has lost his last copy of something is cut back. Then as close_borrowed().
  void lose_borrowed(std::span<const uint32_t> cells);
  // Those that are gone since the last call.
  std::vector<uint32_t> take_departed();
  bool is_borrowed(Place place, uint64_t at) const {
    return place.tier == Tier::kHost && options_.borrowed_bytes > 0 && at >= options_.borrowed_begin();
  }
  // Borrowed cells that are there, those that are to go left out; and those.
  uint32_t borrowed_cells() const { return borrowed_; }
  uint32_t closed_borrowed_cells() const { return closed_borrowed_; }
  // Closed cells that may stay: those in which something lies are open again.
  void keep_borrowed(std::span<const uint32_t> cells);
  // What of sequences lies in closed ones.
  std::vector<PeersView::Recalled> in_closed_borrowed() const;
  // So many of those in which nothing lies, or fewer.
  std::vector<uint32_t> empty_borrowed(uint32_t cells) const;
  // Those in which something lies that nobody needs.
  std::vector<uint32_t> idle_borrowed() const;
  // The frames of up to so many cells of KV on a tier that nobody needs, for peers: the bytes where they
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
  // Transfers that copy blocks that came to be needed by nobody to slower tiers, in the background, so that
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
    std::array<uint32_t, kTiers> promised{};
    uint32_t transfers = 0;
    uint64_t generation = 0;  // raised by drop_all(): what older steps wrote is nobody's any more
#if defined(KVASIR_MUTANTS)
    BlockTable stale_frames;
#endif
  };
  // A frame that becomes a copy when its step has ended.
  struct Fill {
    SeqId seq;
    uint64_t generation;
    uint32_t block;  // of the table
    BlockId id;
    Place place;
    uint32_t group;
    uint64_t at;
  };
  struct StepRecord {
    StepId id;
    struct Part {
      SeqId seq;
      Interval rows;
      uint64_t generation;
      bool again = false;   // dropped cells, computed again
      bool spoilt = false;  // what it read or wrote was lost meanwhile, or never computed
    };
    std::vector<Part> parts;
    std::vector<BlockId> pinned;      // given up, or less wanted, while this was the newest step
    std::vector<Transfer> transfers;  // to be started when it has ended
    std::vector<TransferId> reads;    // of borrowed memory, by this step, which end with it
    std::vector<Fill> fills;
  };
  struct TransferRecord {
    SeqId seq;
    std::vector<Use> uses;
    bool cancellable;
    bool saves = false;  // a block that nobody needs
  };

  Sequence& at(SeqId id);
  const Sequence& at(SeqId id) const;
  uint32_t block_tokens() const {
    return options_.geometry.block_tokens;
  }
  struct Loser {
    Use use;
    SeqId seq;
  };
  void note_losers(const Use& use, std::vector<Loser>& losers) const;
  std::vector<std::pair<SeqId, BlockId>> lost_by(std::span<const Loser> losers) const;
  // These copies are none any more; who has lost his last one is cut back.
  void discard_copies(std::span<const Use> copies);
  // False: of a cell there is nothing that can be copied to that place.
  bool add_copy(Sequence& seq, BlockId id, uint32_t group, Place to, std::optional<uint64_t>& near,
                Addition& out);
  const BlockMap::Copies* source_of(const BlockMap::Block& block, const BlockMap::Owner& owner, Place to,
                                    uint32_t group, Place& from) const;
  void end_fill(const Fill& fill, bool ok);
  void find_dropped(const Sequence& seq, Summary& s) const;
  uint32_t first_device_block(const Sequence& seq) const;
  uint32_t blocks_at_peers(const Sequence& seq) const;
  std::array<uint32_t, kPlaces> frames_in_steps() const;
  bool being_written(const BlockMap::Block& block) const;
  void pass_on_loans(SeqId id);
  void draw(Sequence& seq, Tier tier, uint32_t cells);
  // Of promises for which there is no room any more, those of the latest sequences are not kept.
  void break_promises(Tier tier);
  void pin_for_newest_step(BlockId id);
  void give_up_blocks(Sequence& seq);
  bool has_kv(const Sequence& seq, BlockId id) const;
  void cut_back(Sequence& seq, uint32_t tokens);
  void lose(SeqId id, BlockId block);
  void spoil_steps_in_flight(SeqId id);
  void seal(SeqId id, Sequence& seq, uint32_t done_tokens);
  void update_hashes(Sequence& seq) const;
  void watch(SeqId id, Sequence& seq);
  void rebuild_table(Sequence& seq) const;
  bool tail_busy(const Sequence& seq) const;

  const CacheOptions options_;
  PrefixIndex index_;
  BlockMap map_;
  std::unordered_map<SeqId, Sequence> sequences_;
  std::deque<StepRecord> in_flight_;
  std::unordered_map<TransferId, TransferRecord> transfers_;
  std::vector<TransferId> cancelled_;
  std::vector<SeqId> touched_;
  std::vector<SeqId> cut_back_;
  uint64_t next_transfer_ = 1;
  // Of all promises, the shared reserves among them.
  std::array<uint32_t, kTiers> promised_cells_{};
  std::array<uint32_t, kTiers> reserved_cells_{};
  std::vector<Claim> claims_;
  std::vector<Fill> next_fills_;  // of the step in the making
  std::vector<TransferId> next_reads_;
  std::deque<BlockId> to_be_saved_;  // when fewer are
  uint32_t saves_in_flight_ = 0;
  std::array<uint32_t, kTiers> lent_{};
  uint32_t borrowed_ = 0;
  uint32_t closed_borrowed_ = 0;
};

}  // namespace kvasir
