// The KV cache: the tokens of each sequence, the blocks that hold them, and the transfers between tiers.
//
//   sequence --table--> block --cell per layer group--> a copy on each tier (state, frames)
//
// Identity (tokens, hashes, ids), place (copies: cache/blocks/block_map.h) and bytes (frames of the pools)
// are three separate things. Blocks that a sequence gives up stay pinned until the steps and transfers in
// flight at that moment have ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/pooled_map.h"
#include "base/status.h"
#include "cache/blocks/block_events.h"
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

// Sorts the ids and removes duplicates.
inline void sort_once(std::vector<TransferId>& ids) {
  if (std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end()) return;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

// Used by one thread.
class KvCache {
 public:
  // transfers: how many a cache before this one has begun over the same link, which may see no id twice.
  explicit KvCache(const CacheOptions& options, uint64_t transfers = 0);

  uint64_t transfers_begun() const { return next_transfer_ - 1; }
  // Calls f(TransferId) for each that was begun and of which transfer_ended() was not called.
  template <typename F>
  void for_each_transfer(const F& f) const {
    for (const auto& [id, record] : transfers_) f(id);
  }

  // --- Sequences. A new one waits, and holds nothing. `adopts`: cached prefixes of it count as cached; its
  // own blocks can be found by others either way. If it throws for want of memory, nothing has changed.
  void add_sequence(SeqId id, std::vector<Token> tokens, std::string_view salt, bool adopts = true);
  void append_token(SeqId id, Token token);
  // Gives up its blocks and promises. Transfers of its copies that have not begun are not needed any more.
  void remove_sequence(SeqId id);
  bool contains(SeqId id) const { return sequences_.contains(id); }
  std::span<const Token> tokens(SeqId id) const { return at(id).tokens; }
  // Its history: [0, ready_tokens) count as computed for the steps that follow.
  uint32_t ready_tokens(SeqId id) const { return at(id).ready_tokens; }
  SequenceCells summary(SeqId id) const;
  // The part of a waiting sequence's prompt that is cached.
  PrefixIndex::Match cached(SeqId id) const { return index_.match(id); }
  PrefixIndex::Match cached_on_device(SeqId id) const { return index_.match_on_device(id); }
  // SequenceCells::cached_peer_blocks and attended, which summary() leaves at 0: it takes time linear in
  // those blocks.
  void count_cached_at_peers(SeqId id, SequenceCells& cells) const;
  // Writes it as what a sequence may adopt; summary() does so with all that is cached.
  void offer(const PrefixIndex::Match& cached, SequenceCells& cells) const;
  // Sequences whose summary changed since the last call, other than by a call that names them.
  std::vector<SeqId> take_changed();

  // --- For the committer.
  // Makes the sequence an owner of the published blocks of [0, tokens). REQUIRES: they exist, and the
  // sequence holds no block.
  void adopt(SeqId id, uint32_t tokens);
  // Keeps cells for the sequence until it allocates them.
  void promise(const Promise& promise);
  // The sequence stops running: the rest of its promises and its claims end, and the claims on it are called.
  // Cells that it borrowed and lent on are now owed to its host by its guest.
  void end_promises(SeqId id) {
    Sequence& seq = at(id);
    seq.most_cells.reset();
    seq.owed_cells = 0;
    promises_.end(id);
  }
  // Promises free cells to the creditors of called claims, in the order of the claims, and returns these
  // sequences. Called before the budget of the next plan is read.
  std::vector<SeqId> settle_claims();
  const std::vector<Claim>& claims() const { return promises_.claims(); }
  const Promises::ByTier& reserved_cells() const { return promises_.reserved(); }
  Promises::ByTier promised_cells(SeqId id) const { return promises_.of(id); }
  // Creates the missing blocks of [ready, end), and counts [0, end) as ready for the steps that follow.
  // Blocks that this fills from their first token on get frames of KV in `writes.kv` only, the last block in
  // every group. REQUIRES: the blocks fit by the plan's arithmetic.
  void extend(SeqId id, uint32_t end, const Writes& writes, StepId step);
  // Gives up all cells and promises; the sequence waits again.
  void drop_all(SeqId id);
  // A sequence that does not run gives up all copies of a form on a tier. If it then holds nothing, this is
  // drop_all(). Otherwise the tokens of a partly filled block count only while the sequence holds their KV.
  void drop_form(SeqId id, Form form, Tier tier);
  // True if it gave up its cells at least once: its next rows recompute some of its tokens.
  bool was_dropped(SeqId id) const { return at(id).generation > 0; }

  struct Cell {
    uint32_t block = 0;  // its number in the sequence's table
    uint32_t group = 0;
  };
  struct Additions {
    std::vector<Transfer> transfers;
    std::vector<Cell> projected;
  };
  // Prepares transfers that add the missing copies of the change; `stops`: the sequence stops running
  // (CopyChange::adds_tail). One transfer per layer group, in ascending order. Transfers whose bytes a step
  // in flight still writes are kept back until it has ended. Not for kAfterLayerWrites: see write_through().
  // Where KV is wanted on the device and only X exists, nothing moves: see `projected`.
  Additions add_copies(const CopyChange& change, bool stops);
  // Allocates room on the slower tier for the copies of a change with kAfterLayerWrites, which rows of a step
  // write. Returns their cells.
  std::vector<Cell> write_through(const CopyChange& change);
  // Gives up copies once another copy of the cell is ready (kWhenReady). Copies on the device go after the
  // step being built has been submitted: it may still read them.
  void release(const CopyChange& change);
  // Gives up copies of full blocks at once, even the last ones; on the device as release() does.
  void drop(const CopyChange& change);

  // Takes a frame that the step being built fills beside the sequence's newest rows. If the step succeeds, it
  // becomes a copy that the sequence holds.
  uint64_t begin_fill(SeqId id, uint32_t block, Place place, uint32_t group);

  // Registers a transfer that reads or fills these copies of a sequence; they are in use until it ends.
  // `cancellable`: it is not needed once the sequence is removed.
  struct Use {
    BlockId block = kNoBlock;
    Place place;
    LayerSet groups;
    bool fills = false;
  };
  // Copies that several transfers read.
  struct SharedReads {
    std::vector<Use> uses;
    uint32_t transfers = 0;  // that have not ended
  };
  // `reads`: further copies that it reads, from begin_reads(); or null.
  TransferId begin_transfer(SeqId id, std::vector<Use> uses, bool cancellable, SharedReads* reads = nullptr);
  // All of them are in use until the last of the transfers that begin with them has ended. REQUIRES: all of
  // these transfers begin before one of them ends, and there is at least one.
  SharedReads* begin_reads(std::span<const Use> uses);
  // The step being built reads these copies in place: they are in use until it has ended. No transfer is
  // registered.
  void begin_read(std::vector<Use> uses) {
    steps_.add_read(begin_transfer(SeqId{}, std::move(uses), /*cancellable=*/false));
  }
  // One transfer being built.
  struct Addition {
    Transfer transfer;
    std::vector<Use> uses;
    StepId last_write{};  // the newest step in flight that writes what it reads
  };
  // The segments that copy a cell of a form to another tier.
  void move_cell(const BlockMap::Block& block, uint32_t group, Place from, Tier to, Addition& out) const;
  // Adds bytes to a transfer: to its last segment if they lie right behind that on both sides. On a disk and
  // at peers a segment is one piece.
  void add_segment(Transfer& transfer, MemoryAddress from, MemoryAddress to, uint64_t bytes) const;
  // Adds several pieces of `bytes` each, at these distances from one another.
  struct Pieces {
    MemoryAddress first;
    uint64_t distance = 0;
  };
  void add_segments(Transfer& transfer, const Pieces& from, const Pieces& to, uint64_t bytes,
                    uint32_t count) const;
  // True until transfer_ended() was called for it.
  bool in_flight(TransferId id) const { return transfers_.contains(id); }
  // kCorrupt: the bytes that it read were lost; those copies are removed.
  void transfer_ended(TransferId id, const Status& status);
  // With what is shown to peers, whose memory cannot be used either.
  uint32_t transfers_in_flight() const { return static_cast<uint32_t>(transfers_.size()); }
  uint32_t prefixes_shown() const { return prefixes_shown_; }
  // A plan begins to be committed: what fails of its transfers counts once for each sequence and direction.
  void begin_commit() { ++commits_; }
  // Sequences that reached so many failures in a row of transfers to the device, or to slower tiers, since
  // the last call, each with the last one's status: the link does not work for them. Failures of one commit's
  // transfers count once, for a step has a transfer per batch of layers. What was cancelled, or was lost on a
  // disk, does not count.
  static constexpr uint32_t kFailuresInARow = 16;
  struct Failing {
    SeqId seq{};
    Status status;
  };
  std::vector<Failing> take_failing() { return std::exchange(failing_, {}); }
  // What a transfer in flight moves, for people: from where (nothing: a step in flight writes it), and to
  // where (nothing: the stage ring).
  struct InFlight {
    SeqId seq{};  // 0: a block without a sequence, or the sequence is gone
    std::optional<Place> from;
    std::optional<Place> to;
    uint32_t cells = 0;
  };
  template <typename F>
  void for_each_move(const F& f) const {
    for (const auto& [id, record] : transfers_) f(in_flight(record));
  }
  // Transfers that have become useless since the last call.
  std::vector<TransferId> take_cancelled() { return std::exchange(cancelled_, {}); }
  // Sequences that lost the last copy of a cell, or had rows deferred, since the last call. Their tokens from
  // there on are no longer computed, and their rows in steps in flight do not count.
  std::vector<SeqId> take_cut_back() { return std::exchange(cut_back_, {}); }

  // --- Memory of peers (cache/sequences/borrowed_cells.h).
  bool is_borrowed(Place place, uint64_t at) const { return borrowed_.contains(place, at); }
  uint32_t borrowed_cells() const { return borrowed_.open(); }
  uint32_t closed_borrowed_cells() const { return borrowed_.closed(); }
  std::vector<uint32_t> empty_borrowed(uint32_t most) const { return borrowed_.empty(most); }
  std::vector<uint32_t> idle_borrowed() const { return borrowed_.idle(); }
  // So many of these, or somewhat more: those of whole blocks, the longest idle first.
  std::vector<uint32_t> longest_idle_borrowed(uint32_t cells) const;
  void add_borrowed(std::span<const uint32_t> cells) { borrowed_.add(cells); }
  // Closes borrowed cells (BorrowedCells::close()), and breaks promises for which there is no longer room.
  void close_borrowed(std::span<const uint32_t> cells);
  void keep_borrowed(std::span<const uint32_t> cells) { borrowed_.keep(cells); }
  // The bytes of these cells are lost: cuts back sequences that lost their last copy of a cell, then closes
  // the cells.
  void lose_borrowed(std::span<const uint32_t> cells);
  // Closed cells that have gone since the last call.
  std::vector<uint32_t> take_departed() { return borrowed_.take_departed(); }
  // The cells of each sequence that lie in closed borrowed cells.
  std::vector<PeersView::Recalled> in_closed_borrowed() const;
  // Takes up to `cells` free or idle frames of KV on a tier to lend them to peers. Returns their offsets.
  std::vector<uint64_t> lend(Tier tier, uint32_t cells);
  void take_back(Tier tier, std::span<const uint64_t> frames);
  uint32_t lent_cells(Tier tier) const { return lent_[index_of(tier)]; }
  // Whether peers can attend to leaf `leaf` of a sequence's history (ops/attention_tree.h) in a layer group:
  // its blocks are full, and the KV of each is not on the device and is in borrowed memory, at the latest
  // when the transfers in flight have ended.
  bool lies_at_peers(const Holdings& holder, std::span<const BlockId> table, uint32_t leaf,
                     uint32_t group) const;

  // --- Prefixes that peers have (cache/sequences/peer_prefixes.cc).
  // The hashes of a prompt's full blocks, in order, of which the first `cached` are cached; none if the
  // sequence has run.
  struct PromptBlocks {
    std::vector<BlockHash> hashes;
    size_t cached = 0;
    std::span<const BlockHash> missing() const { return std::span(hashes).subspan(cached); }
  };
  PromptBlocks prompt_blocks(SeqId id) const;
  // A transfer that copies blocks from peers to the device; they can be found when it has ended well. from:
  // of each cell of the missing ones, block by block and group by group. Blocks that are here are left out,
  // and stay until it ends; so are the last ones for which there is no free memory beside `reserve` cells.
  // Nothing: there is none to copy.
  std::optional<Transfer> copy_prefix(const PromptBlocks& blocks, std::span<const MemoryAddress> from,
                                      uint32_t reserve);
  // Such transfers that have ended since the last call, and whether they brought their bytes.
  struct CopiedPrefix {
    TransferId id{};
    bool ok = false;
  };
  std::vector<CopiedPrefix> take_copied_prefixes() { return std::exchange(copied_prefixes_, {}); }
  // The frames of the first blocks of a chain, as far as they are whole in this instance's own memory. They
  // are in use until hide_prefix(). At most a quarter of the device's cells are at once.
  struct Frame {
    Tier tier = Tier::kDevice;
    uint64_t at = 0;
  };
  struct ShownPrefix {
    TransferId id{};  // 0: there are none
    std::vector<Frame> frames;
  };
  ShownPrefix show_prefix(std::span<const BlockHash> chain);
  // A peer attends to the first `blocks` for as long as it wants: until hide_prefix() they count as lent,
  // neither as shown nor as a transfer, and as none of what is coming. The others are in use no longer.
  void keep_prefix(TransferId id, uint32_t blocks);
  void hide_prefix(TransferId id);
  uint32_t kept_cells() const { return kept_; }  // those kept by two counted twice

  // --- Prefixes that are attended at the peer that has them: such blocks are copies in its memory, which
  // sequences here read and none of them writes.
  // The chain's blocks lie in these cells, block by block and group by group, and are found from now on; of a
  // block that is here already the cells are gone at once, as are those behind the chain's. They stay until
  // let_go(), and then as long as sequences own them. Returns its number, or 0: it added none.
  // REQUIRES: BorrowedCells::attended(cell) for each
  uint64_t attend_at_peers(std::span<const BlockHash> chain, std::span<const uint32_t> cells);
  void let_go(uint64_t attended);
  uint32_t attended_cells() const { return borrowed_.attended_cells(); }

  // --- Prompts of which a peer computes the first rows.
  // Lends the frames of the first blocks of a chain with the KV that is in them, block by block and group by
  // group, as far as they are whole and idle on one tier; the blocks are not found here any more. Nothing: a
  // block that is here is in use, and may be idle later.
  std::optional<std::vector<Frame>> lend_blocks(std::span<const BlockHash> chain);
  // The chain's blocks lie in these borrowed cells, block by block and group by group, and are found from now
  // on; of a block that is here already the cells stay empty. Returns how many blocks it added. REQUIRES: the
  // cells are empty, and there are as many as the blocks take
  uint32_t add_cached(std::span<const BlockHash> chain, std::span<const uint32_t> cells);

  // --- Blocks that outlive their sequences.
  // Returns transfers that copy newly idle blocks to slower tiers in the background, so that they can still
  // be found after the device has evicted them. Their frames on the device are in use until then: at most
  // an eighth of the device and, but for one block, ahead[tier] bytes are on their way to a tier at once.
  using BytesByTier = std::array<uint64_t, kTiers>;
  std::vector<Transfer> save_idle(const BytesByTier& ahead);
  // The disk's cells of published blocks that are complete there. restore() takes such a list, before any
  // other call, and returns the number of blocks that it took.
  std::vector<DiskEntry> saved_cells() const;
  size_t restore(std::span<const DiskEntry> cells);

  // --- For others, with CacheOptions::tells_events: what has become reusable since the last call, and what
  // is not any more. Blocks of requests with a salt are left out. A block that restore() took is told when a
  // sequence that has its tokens first adopts or fills it.
  std::vector<CacheEvent> take_events() { return events_->take(); }
  // All that is reusable, behind a kCleared; take_events() goes on from there.
  std::vector<CacheEvent> take_all_events();

  // --- For steps.
  std::shared_ptr<const BlockTable> table(SeqId id);
  std::span<const BlockId> blocks_of(SeqId id) const { return at(id).table; }
  const BlockMap::Block& block(BlockId id) const { return map_.block(id); }
  const Holdings& holdings(SeqId id) const { return at(id).holds; }
  // Of its first blocks, those whose windowed cells it has given up.
  uint32_t dead_blocks(SeqId id) const { return at(id).dead_blocks; }

  // --- Steps, in order.
  void step_submitted(StepId step, std::span<const StepSlice> slices);
  struct StepOutcome {
    std::vector<SeqId> void_rows;     // sequences whose rows do not count: deferred, or spoilt
    std::vector<Transfer> transfers;  // those kept back until the step ended
  };
  // The oldest step has ended. `ok`: its writes are valid, except for deferred sequences; the blocks that it
  // filled are published.
  StepOutcome step_ended(StepId step, bool ok, std::span<const SeqId> deferred);

  FrameBudget budget(Tier tier) const;
  const BlockMap& map() const { return map_; }
  const CacheGeometry& geometry() const { return options_.geometry; }
  const CacheOptions& options() const { return options_; }

  // Recounts everything and compares: owners, holds, pins, idle blocks, frames, promises, hashes.
  Status check_integrity() const;

 private:
  struct Sequence;
  struct TransferRecord {
    TransferId id{};
    Sequence* seq = nullptr;  // whose copies it moves; null: of none, or the sequence is gone
    std::vector<Use> uses;
    SharedReads* reads = nullptr;
    bool cancellable = false;
    uint64_t commit = 0;           // in which it began
    std::optional<Tier> saves_to;  // it saves an idle block
    bool copies_prefix = false;    // it fills blocks of no sequence
    // Its neighbours among the transfers of the sequence.
    TransferRecord* before = nullptr;
    TransferRecord* next = nullptr;
  };
  // In the order in which they began.
  struct TransferList {
    TransferRecord* first = nullptr;
    TransferRecord* last = nullptr;
    uint32_t size = 0;

    void push_back(TransferRecord& record);
    void erase(TransferRecord& record);
  };
  struct Sequence {
    std::vector<Token> tokens;
    std::vector<BlockHash> hashes;  // of the full blocks of known tokens; [0] is the chain's root
    std::vector<BlockId> table;
    Holdings holds;
    std::shared_ptr<BlockTable> frames;  // of the table's blocks; see Holdings::table_changed
    uint32_t ready_tokens = 0;           // when the steps submitted so far have ended
    uint32_t sealed_blocks = 0;          // full and published, or found to be published already
    uint32_t dead_blocks = 0;            // in the windowed layer groups, whose cells it has given up
    TransferList transfers;              // of its copies, in flight
    // Of its transfers to the device and to slower tiers: since the last one that succeeded.
    struct Failures {
      uint32_t in_a_row = 0;
      uint64_t commit = 0;  // the newest that counts
    };
    std::array<Failures, 2> failures{};
    bool touched = false;  // it is in touched_
    bool adopts = true;    // it is watched while it waits
    bool salted = false;
    // Of KV on the device: what it had when it was first promised some, and what it was promised since. Of
    // the windowed cells that it adopted, only those that no other sequence used. Empty: no promise.
    std::optional<uint32_t> most_cells;
    // With windows or states: dead cells that it gave up, and those of rows that left a step, for which
    // nothing was promised in return yet.
    uint32_t owed_cells = 0;
    uint64_t generation = 0;  // raised by drop_all(): writes of older steps do not count
#if defined(KVASIR_MUTANTS)
    BlockTable stale_frames;
#endif
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
  InFlight in_flight(const TransferRecord& record) const;
  void count_failures(Sequence& seq, const TransferRecord& record, const Status& status);
  void use(const Use& use, TransferId transfer);
  LayerSet to_save(const BlockMap::Block& block, Tier tier) const;
  bool can_be_saved(BlockId id, Tier tier) const;
  Transfer save_block(BlockId id, Tier tier);
  void note_losers(const Use& use, std::vector<Loser>& losers) const;
  std::vector<std::pair<SeqId, BlockId>> lost_by(std::span<const Loser> losers) const;
  // Removes lost copies, and cuts back sequences that lost their last copy of a cell.
  void discard_copies(std::span<const Use> copies);
  // What adding copies of a block at a place takes, for some layer groups.
  struct BlockAddition {
    uint32_t number = 0;  // of the block in the table
    BlockId id = kNoBlock;
    LayerSet added;                       // the sequence takes hold of these
    std::array<LayerSet, kTiers> from{};  // of those: the groups to be copied, by their source
    LayerSet nowhere;                     // groups without a copy to read
  };
  // The sequence's blocks that a change names.
  Interval named_blocks(const Sequence& seq, const CopyChange& change, bool tail) const {
    return intersect(change.blocks(block_tokens(), tail), {0, static_cast<uint32_t>(seq.table.size())});
  }
  BlockAddition addition_of(const Sequence& seq, uint32_t block, const LayerSet& groups, Place to) const;
  void add_moves(const BlockAddition& part, uint32_t group, Place to, Addition& out) const;
  void end_fill(const StepsInFlight::Fill& fill, bool ok);
  void find_dropped(const Sequence& seq, SequenceCells& s) const;
  uint32_t first_device_block(const Sequence& seq) const;
  void let_go_of(std::span<const uint32_t> cells);
  uint32_t blocks_at_peers(const Sequence& seq) const;
  bool being_written(const BlockMap::Block& block) const;
  void pin_for_newest_step(BlockId id);
  void give_up_blocks(Sequence& seq);
  void give_up_dead_cells(Sequence& seq);
  uint32_t device_cells_of(const Sequence& seq) const;
  void raise_most_cells(Sequence& seq, uint32_t cells);
  void promise_owed_cells(Sequence& seq);
  bool has_kv(const Sequence& seq, BlockId id) const;
  void cut_back(Sequence& seq, uint32_t tokens);
  void lose(SeqId id, BlockId block);
  void spoil_steps_in_flight(SeqId id);
  void seal(SeqId id, Sequence& seq, uint32_t done_tokens);
  void describe(const Sequence& seq, uint32_t number, BlockId id);
  void update_hashes(Sequence& seq) const;
  void watch(SeqId id, Sequence& seq);
  // Fills the table of frames, from a block on.
  void fill_table(Sequence& seq, size_t first_block) const;
  bool tail_busy(const Sequence& seq) const;

  const CacheOptions options_;
  std::optional<BlockEvents> events_;
  PrefixIndex index_;
  BlockMap map_;
  PooledMap<SeqId, Sequence> sequences_;
  StepsInFlight steps_;
  PooledMap<TransferId, TransferRecord> transfers_;
  std::deque<SharedReads> reads_;          // those in use, and those to be used again
  std::vector<SharedReads*> spare_reads_;  // of these: not in use
  std::vector<TransferId> cancelled_;
  std::vector<SeqId> touched_;
  std::vector<SeqId> cut_back_;
  uint64_t next_transfer_;
  Promises promises_;
  std::array<std::deque<BlockId>, kTiers> to_be_saved_;  // when fewer are
  std::array<uint32_t, kTiers> saves_in_flight_{};
  std::vector<Failing> failing_;
  uint64_t commits_ = 0;
  std::array<uint32_t, kTiers> lent_{};
  std::vector<CopiedPrefix> copied_prefixes_;
  uint32_t prefixes_shown_ = 0;
  uint32_t shown_ = 0;  // cells of shown prefixes, those shown twice counted twice
  std::map<TransferId, std::vector<Use>> kept_prefixes_;  // that peers attend here
  uint32_t kept_ = 0;
  std::map<uint64_t, std::vector<BlockId>> attended_;  // until let_go()
  uint64_t last_attended_ = 0;
  BorrowedCells borrowed_;
};

}  // namespace kvasir
