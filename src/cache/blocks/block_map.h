// Blocks and their copies: which sequences own a block, which of its copies each holds, where each copy lies.
//
// A cell, a block of one layer group, has at most one copy at each place (a form on a tier). A copy exists
// as long as a sequence holds it, or a transfer or step in flight may still use it. A block that
// is full and has a usable copy in every group that has no window is *published*: it can be found by its
// hash. Its copies that no sequence holds are kept, *idle*, until their tier has no other room; then those of
// the least recently used block are evicted. A block that can no longer be found is freed as soon as nothing
// uses it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "cache/blocks/block_frames.h"
#include "cache/blocks/block_hash.h"
#include "cache/blocks/block_list.h"
#include "cache/blocks/layer_counts.h"
#include "cache/blocks/place.h"
#include "cache/blocks/prefix_index.h"
#include "cache/tiers/slab_pool.h"
#include "contract/frame_budget.h"
#include "contract/geometry.h"
#include "contract/ids.h"
#include "contract/layer_set.h"
#include "contract/link.h"
#include "contract/step.h"

namespace kvasir {

// What one sequence holds, in cells, kept by the map as holds come and go.
struct Holdings {
  SeqId seq{};
  std::array<uint32_t, kPlaces> cells{};
  std::array<uint32_t, kPlaces> own{};    // held by no other sequence, and not in use
  uint32_t released = 0;                  // KV on the device, held until another copy is ready
  uint32_t filling = 0;                   // KV on the device whose bytes have not arrived
  uint32_t dropped = 0;                   // cells of its blocks that live, of which it holds neither KV nor X
  uint32_t dead = 0;                      // cells of its blocks that it will not read again
  std::vector<uint32_t> device_in_group;  // blocks that are dead or have KV on the device, by layer group
  bool table_changed = true;              // some of its blocks have other frames than before

  uint32_t at(Place place) const { return cells[index_of(place)]; }
  // Cells that no row has to wait for.
  uint32_t on_device_or_dead() const { return at(kDeviceKv) + dead; }
};

// How a tier's memory is divided into slabs and cells.
struct TierShape {
  uint64_t bytes = 0;
  uint64_t slab_bytes = 0;
  std::array<uint64_t, kForms> cell_bytes{};  // 0: the tier has no such cells

  // The smallest slab, in cells of KV, in which no form wastes more than a fifteenth; if there is none, the
  // least wasteful one.
  static TierShape of(const CacheGeometry& geometry, Tier tier, uint64_t bytes);
  uint32_t cells(Form form) const {
    if (cell_bytes[index_of(form)] == 0) return 0;
    return static_cast<uint32_t>(bytes / slab_bytes * (slab_bytes / cell_bytes[index_of(form)]));
  }
};

// Used by one thread.
class BlockMap {
 public:
  struct Owner {
    Holdings* holder = nullptr;
    std::array<LayerSet, kPlaces> wants;     // the copies that it holds
    std::array<LayerSet, kPlaces> released;  // of those: held until another copy is ready
    LayerSet dead;                           // it will not read these cells again, and holds no copy of them
    // This block's part of the counts in *holder.
    std::array<uint32_t, kPlaces> own{};
    uint32_t filling = 0;

    const LayerSet& at(Place place) const { return wants[index_of(place)]; }
    // The groups in which it holds a copy, or will not read the cell again.
    LayerSet covered() const;
  };
  struct Filler {
    TransferId transfer{};
    LayerSet groups;
  };
  struct Copies {
    LayerSet present;
    LayerSet ready;    // of those: their bytes have arrived
    LayerSet current;  // of those present: they have all the block's tokens
    LayerSet pinned;   // transfers read or fill them
    LayerSet idle;
    LayerSet failed;              // a transfer that filled them failed
    BlockFrames by_group;         // of those present
    std::vector<Filler> fillers;  // those that have not ended, in the order in which they were added
    LayerCounts pins;             // by transfers

    LayerSet usable() const { return ready & current; }
    // The groups that transfers fill.
    LayerSet filling() const {
      LayerSet sum;
      for (const Filler& f : fillers) sum |= f.groups;
      return sum;
    }
    void append_fillers(uint32_t group, std::vector<TransferId>& out) const {
      for (const Filler& f : fillers) {
        if (f.groups.contains(group)) out.push_back(f.transfer);
      }
    }
  };
  struct BlockState {
    bool used = false;
    uint32_t pins = 0;       // by steps in flight and by transfers of its cells
    uint32_t step_pins = 0;  // of those: by steps, which may use any copy on the device
    uint32_t tokens = 0;     // that are written when the steps in flight have ended
    StepId last_write{};     // the newest step that writes to it
    bool sealed = false;     // full and immutable
    bool published = false;
    bool unsettled = false;          // settle() is due
    bool owned_since_noted = false;  // a sequence owned it since it was last noted as newly idle
    BlockHash hash;                  // of a sealed block
    // Its copies on the host tier lie in memory of peers, which is none of the tier's: to give them up makes
    // no room.
    bool attended = false;
    // Peers that attend to it here, each for as long as it wants: nothing of the block is coming meanwhile.
    uint32_t keepers = 0;
    bool counted_shared = false;             // at the last count every copy was ready and had several owners
    std::array<uint32_t, kPlaces> coming{};  // cells that become free when what is in flight has ended
  };
  struct Block : BlockState {
    std::array<Copies, kPlaces> on;
    std::vector<Owner> owners;

    const Copies& at(Place place) const { return on[index_of(place)]; }
  };

  BlockMap(const CacheGeometry& geometry, const std::array<uint64_t, kTiers>& tier_bytes, PrefixIndex& index);

  const Block& block(BlockId id) const { return blocks_[raw(id)]; }
  const std::vector<Block>& blocks() const { return blocks_; }
  const LayerSet& all_groups() const { return all_; }
  // The groups in which a published block has copies: without those that have a window, if there are others.
  const LayerSet& lasting_groups() const { return lasting_; }
  const TierShape& shape(Tier tier) const { return shapes_[index_of(tier)]; }
  // The holder's entry in the block. REQUIRES: it is an owner.
  const Owner& owner(BlockId id, const Holdings& holder) const;

  // --- Owners.
  // Makes a block of `holder`. Rows of the step being built write these copies on the device. Evicts idle
  // copies where there is no other room.
  BlockId create(Holdings& holder, const Writes& device);
  // Makes `holder` an owner of a published block, in which the cells `dead` are dead for it. It holds one
  // copy of each other one, the cheapest.
  void add_owner(BlockId id, Holdings& holder, const LayerSet& dead = {});
  // `holder` gives up the block and every copy of it that it holds.
  void remove_owner(BlockId id, Holdings& holder);
  // Publishes a block without owners whose copies lie at these places of a tier, and takes the places.
  // Returns how many it took: 0 if a place is not free, if a lasting group lacks a copy, or if another block
  // has the hash. attended: BlockState::attended.
  struct Found {
    Form form = Form::kKv;
    uint32_t group = 0;
    uint64_t at = 0;
  };
  size_t restore(const BlockHash& hash, std::span<const Found> copies, Tier tier = Tier::kDisk,
                 bool attended = false);
  // Takes the frames of the block's KV on a tier, by group, which are copies no longer, as if take_frame()
  // had given them. REQUIRES: they are idle in every group.
  std::vector<uint64_t> take_idle_frames(BlockId id, Tier tier);
  // Makes a full block without owners, of which KV on the device is to come. REQUIRES: a transfer that fills
  // all groups is added at once, and publish_filled() is called before that gives the copies back
  BlockId create_filled(const BlockHash& hash);
  // Publishes the block if its bytes have come.
  void publish_filled(BlockId id) { update_published(id); }

  // --- Holds. Copies that do not exist get frames, group by group: the frames of consecutive blocks in one
  // group lie one behind the other.
  struct Wish {
    BlockId block = kNoBlock;
    LayerSet groups;
  };
  void want(std::span<const Wish> wishes, Holdings& holder, Place place);
  void want(BlockId id, Holdings& holder, Place place, const LayerSet& groups) {
    const Wish wish = {id, groups};
    want({&wish, 1}, holder, place);
  }
  void unwant(BlockId id, Holdings& holder, Place place, const LayerSet& groups);
  // `holder` will not read these cells again: it gives up all copies of them, and takes hold of none.
  void let_die(BlockId id, Holdings& holder, const LayerSet& groups);
  // Gives up copies, even the last ones of a cell. Where another copy that it holds is still being filled,
  // gives up this one when that one is ready.
  void drop(BlockId id, Holdings& holder, Place place, const LayerSet& groups);
  // Replaces copies by others that serve as well: gives them up as soon as those are ready. Nothing changes
  // where there is no other.
  void release(BlockId id, Holdings& holder, Place place, const LayerSet& groups);
  // Takes a frame that a step fills. It is not a copy until attach(); otherwise it is given back.
  uint64_t take_frame(Place place);
  void give_back_frame(Place place, uint64_t at);
  // Makes the frame a copy with all the block's tokens, held by `holder`. If there is a copy already, frees
  // the frame, and `holder` holds that copy if it is usable.
  void attach(BlockId id, Holdings& holder, Place place, uint32_t group, uint64_t at);
  // Makes copies that a transfer will fill and no sequence holds. REQUIRES: they do not exist.
  void add_unowned(BlockId id, Place place, const LayerSet& groups) {
    const Wish wish = {id, groups};
    allocate({&wish, 1}, place);
  }

  // --- Bytes.
  // A transfer fills the copies with all tokens of the block. A copy is ready when all its fillers have
  // ended. If one of them failed, the copy is removed, and no sequence holds it.
  void add_filler(BlockId id, Place place, const LayerSet& groups, TransferId filler);
  void filler_ended(BlockId id, Place place, const LayerSet& groups, TransferId filler, bool ok);
  // Removes copies whose bytes were lost. No sequence holds them afterwards.
  void discard(BlockId id, Place place, const LayerSet& groups);
  void pin(BlockId id, Place place, const LayerSet& groups);
  void unpin(BlockId id, Place place, const LayerSet& groups);
  void add_keeper(BlockId id);
  void remove_keeper(BlockId id);
  // Pins the whole block until the newest step in flight ends.
  void pin_for_step(BlockId id);
  void unpin_for_step(BlockId id);
  // The block has `tokens` tokens when the step being built has ended. Copies that the step does not extend
  // are removed.
  void set_written(BlockId id, uint32_t tokens, const Writes& writes, StepId step);
  // Whether the block has other copies than KV on the device.
  bool has_other_copies(BlockId id) const;
  // Shortens the block to `tokens` tokens, on all tiers.
  void cut(BlockId id, uint32_t tokens);
  // The block is full and immutable from now on. With a hash it is published while it has a usable copy in
  // every lasting group, unless another block has the hash (but for replace_slower()).
  void seal(BlockId id, const BlockHash* hash);
  // Published blocks whose copies on the device have become idle since the last call, in that order. None
  // where there is no other tier.
  std::vector<BlockId> take_newly_idle() { return std::exchange(newly_idle_, {}); }

  // --- Slabs of the host tier, which can be opened and closed (SlabPool).
  void open_host_slab(uint32_t slab) { pools_[index_of(Tier::kHost)].open(slab); }
  bool host_slab_is_open(uint32_t slab) const {
    return !pools_[index_of(Tier::kHost)].is_absent(slab) && !pools_[index_of(Tier::kHost)].is_closed(slab);
  }
  bool host_slab_is_empty(uint32_t slab) const { return pools_[index_of(Tier::kHost)].is_empty(slab); }
  bool host_slab_is_needed(uint32_t slab) const { return pools_[index_of(Tier::kHost)].is_needed(slab); }
  // Nothing more is allocated in these slabs. A slab departs as soon as no sequence or transfer needs it.
  void close_host_slabs(std::span<const uint32_t> slabs);
  // Undoes the closing of a slab. Returns false if it was not closed, or has departed.
  bool keep_host_slab(uint32_t slab) {
    SlabPool& pool = pools_[index_of(Tier::kHost)];
    if (!pool.is_closed(slab)) return false;
    pool.keep(slab);
    return true;
  }
  std::vector<uint32_t> take_departed_host_slabs() { return pools_[index_of(Tier::kHost)].take_departed(); }

  // Published blocks with idle copies on the tier, the longest idle first.
  const BlockList& idle(Tier tier) const { return lru_[index_of(tier)]; }

  // --- Counting.
  FrameBudget budget(Tier tier) const;
  // Blocks with copies on the tier that can be evicted.
  uint32_t idle_blocks(Tier tier = Tier::kDevice) const { return lru_[index_of(tier)].size(); }
  // Cells that sequences hold or that something in flight uses; and their bytes, over all forms.
  uint32_t used_cells(Tier tier, Form form = Form::kKv) const;
  uint64_t used_bytes(Tier tier) const;
  uint64_t total_bytes(Tier tier) const { return pools_[index_of(tier)].slabs() * shape(tier).slab_bytes; }
  // Sequences whose counts changed through another sequence since the last call.
  std::vector<SeqId> take_touched() { return std::exchange(touched_, {}); }

  // `loose_frames`: frames from take_frame() that were neither attached nor given back, by place.
  Status check_integrity(const std::array<uint32_t, kPlaces>& loose_frames) const;

 private:
  Block& at(BlockId id) { return blocks_[raw(id)]; }
  bool exists(Place place) const { return shape(place.tier).cell_bytes[index_of(place.form)] > 0; }
  BlockId new_block();
  Owner& owner_of(Block& b, const Holdings& holder);
  void let_die(Owner& owner, const LayerSet& groups);
  void set_wants(Owner& owner, Place place, const LayerSet& wants);
  void set_released(Owner& owner, Place place, const LayerSet& released);
  LayerSet substitutes(const Block& b, const Owner& owner, Place place, bool ready) const;
  // Gives up the copies that the owner releases where another is ready, and keeps those that have no other.
  void settle_released(Block& b, Owner& owner);
  void drop_copies(Block& b, Place place, const LayerSet& groups);
  LayerSet wanted(const Block& b, size_t place) const;
  void recount(Block& b);
  // To be called after a hold or pin was added or removed. Copies that nothing needs become idle or are
  // freed. A block without owners, pins and hash is freed.
  void settle(BlockId id);
  void set_idle(Block& b, size_t place, const LayerSet& idle);
  void list_idle(BlockId id);
  void free_copies(Block& b, Place place, const LayerSet& groups);
  void forget_copies(Block& b, Place place, const LayerSet& groups);
  // Allocates the wished copies that do not exist, or bare frames; contiguous where possible.
  void allocate(std::span<const Wish> wishes, Place place);
  void allocate(Place place, std::span<uint64_t> frames);
  void evict(BlockId id, Tier tier);
  void free_block(BlockId id);
  Adoptable adoptable(const Block& b) const;
  bool can_be_found(const Block& b) const;
  // Publishes or unpublishes the block, depending on can_be_found().
  void update_published(BlockId id);
  // Publishes the block in place of the one with its hash, if that one lacks cells, or is on a slower tier
  // and nothing uses it. If nothing does, takes over its copies there. A block that lacks cells takes no
  // place of one that has them.
  void replace_slower(BlockId id);
  Status check_copies(uint32_t block, size_t place, std::set<uint64_t>& places) const;

  const CacheGeometry geometry_;
  const LayerSet all_;
  const LayerSet lasting_;
  const std::array<TierShape, kTiers> shapes_;
  std::vector<size_t> existing_;  // places that have memory
  std::vector<size_t> cheapest_;  // the same, in the order of kCheapestFirst
  std::array<SlabPool, kTiers> pools_;
  PrefixIndex& index_;
  const bool has_slower_tier_;
  std::vector<Block> blocks_;
  std::vector<BlockId> free_ids_;
  std::array<BlockList, kTiers> lru_;  // blocks with idle copies there, oldest first
  std::vector<BlockId> newly_idle_;
  std::vector<SeqId> touched_;
  std::array<uint32_t, kPlaces> coming_{};  // sums of Block::coming
};

}  // namespace kvasir
