// Blocks and their copies: which sequences own a block, which of its copies each holds, where each copy lies.
//
// A cell, a block of one layer group, has at most one copy at each place (a form on a tier). A copy exists
// as long as a sequence holds it, or a transfer or step in flight may still use it. A block that
// is full and of which K and V can be had in every group is *published*: it can be found by its hash. Its
// copies that no sequence holds are kept, *idle*, until their tier has no other room: then those of the least
// recently used block are evicted. What is left of a block that can be found no more is freed.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

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
  std::array<uint32_t, kPlaces> own{};    // that no other sequence holds and nothing uses
  uint32_t released = 0;                  // KV on the device, until another copy is ready
  uint32_t filling = 0;                   // KV on the device, whose bytes have not come yet
  uint32_t dropped = 0;                   // cells of its blocks of which it holds neither KV nor X
  std::vector<uint32_t> device_in_group;  // blocks with KV on the device, by layer group
  bool table_changed = true;              // the frames of blocks that it had are not those they were

  uint32_t at(Place place) const { return cells[index_of(place)]; }
};

// How a tier's memory is cut up.
struct TierShape {
  uint64_t bytes = 0;
  uint64_t slab_bytes = 0;
  std::array<uint64_t, kForms> cell_bytes{};  // 0: the tier has no such cells

  // The slab of fewest cells of KV in which no form wastes more than a fifteenth, or the least wasteful one.
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
    Holdings* who = nullptr;
    std::array<LayerSet, kPlaces> wants;     // the copies that it holds
    std::array<LayerSet, kPlaces> released;  // of those: until another copy is ready
    // As counted in *who.
    std::array<uint32_t, kPlaces> own{};
    uint32_t filling = 0;

    const LayerSet& at(Place place) const { return wants[index_of(place)]; }
    // The groups in which it holds a copy that K and V can be had from.
    LayerSet covered() const;
  };
  struct Copy {
    uint64_t at = 0;      // in the tier's memory
    uint32_t tokens = 0;  // so many of the block's tokens it has
  };
  struct Filler {
    TransferId transfer{};
    LayerSet groups;
  };
  struct Copies {
    LayerSet present;
    LayerSet ready;    // of those: the bytes are there
    LayerSet current;  // of those present: of all the block's tokens
    LayerSet pinned;   // transfers read or fill them
    LayerSet idle;
    LayerSet failed;              // one of those that fill them did
    std::vector<Copy> by_group;   // empty as long as there never was one
    std::vector<Filler> fillers;  // that have not ended, in the order in which they came
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
  struct Block {
    bool used = false;
    std::array<Copies, kPlaces> on;
    std::vector<Owner> owners;
    uint32_t pins = 0;       // by steps in flight, and of cells by transfers
    uint32_t step_pins = 0;  // of those: by steps, which may use any copy on the device
    uint32_t tokens = 0;     // that have been written, or will be when the steps in flight end
    StepId last_write{};     // the newest step that writes to it
    bool sealed = false;     // full and immutable
    bool published = false;
    bool unsettled = false;                  // settle() is due
    bool owned_since_noted = false;          // a sequence owned it since it was last noted as newly idle
    BlockHash hash;                          // of a sealed one
    bool counted_shared = false;             // at the last count every copy had several owners, and was ready
    std::array<uint32_t, kPlaces> coming{};  // cells that come free when what is in flight has ended

    const Copies& at(Place place) const { return on[index_of(place)]; }
  };

  BlockMap(const CacheGeometry& geometry, const std::array<uint64_t, kTiers>& tier_bytes, PrefixIndex& index);

  const Block& block(BlockId id) const { return blocks_[raw(id)]; }
  const std::vector<Block>& blocks() const { return blocks_; }
  const LayerSet& all_groups() const { return all_; }
  const TierShape& shape(Tier tier) const { return shapes_[index_of(tier)]; }
  // The owner's line in a block. REQUIRES: it names it.
  const Owner& owner(BlockId id, const Holdings& who) const;

  // --- Owners.
  // A new block of `who`, of which rows of the step in the making write these copies on the device,
  // evicting where needed.
  BlockId create(Holdings& who, const Writes& device);
  // `who` owns a published block from now on, and holds one copy of each cell, the cheapest.
  void add_owner(BlockId id, Holdings& who);
  // It gives up the block and every copy that it holds.
  void remove_owner(BlockId id, Holdings& who);
  // A block without owners, to be found by its hash, of which these copies lie on the disk: their places are
  // taken. Returns how many it has taken: 0 if there is no such room, or if another block has the
  // hash.
  struct Found {
    Form form = Form::kKv;
    uint32_t group = 0;
    uint64_t at = 0;
  };
  size_t restore(const BlockHash& hash, std::span<const Found> copies);

  // --- Holds. For copies that do not exist frames are allocated: group by group, so that those of one group
  // and consecutive blocks lie one behind the other.
  struct Wish {
    BlockId block = kNoBlock;
    LayerSet groups;
  };
  void want(std::span<const Wish> wishes, Holdings& who, Place place);
  void want(BlockId id, Holdings& who, Place place, const LayerSet& groups) {
    const Wish wish = {id, groups};
    want({&wish, 1}, who, place);
  }
  void unwant(BlockId id, Holdings& who, Place place, const LayerSet& groups);
  // Gives up copies, also the last ones; but where one of its others is still on its way, when that is ready.
  void drop(BlockId id, Holdings& who, Place place, const LayerSet& groups);
  // Gives up copies as soon as others are ready that serve as well, which it then holds instead; where there
  // are none, nothing changes.
  void release(BlockId id, Holdings& who, Place place, const LayerSet& groups);
  // A frame for what a step in flight makes, which is no copy yet; it is given to attach() or back.
  uint64_t take_frame(Place place);
  void give_back_frame(Place place, uint64_t at);
  // It is a copy now, of all the block's tokens, and `who` holds it; unless there is one already.
  void attach(BlockId id, Holdings& who, Place place, uint32_t group, uint64_t at);
  // Copies that a transfer will fill, and no sequence holds. REQUIRES: they do not exist.
  void add_unowned(BlockId id, Place place, const LayerSet& groups) {
    const Wish wish = {id, groups};
    allocate({&wish, 1}, place);
  }

  // --- What becomes of bytes.
  // A transfer fills the copies, which will have all tokens of the block. A copy is ready when all that fill
  // it have ended; or, if one failed, it is gone, and no sequence holds it.
  void add_filler(BlockId id, Place place, const LayerSet& groups, TransferId filler);
  void filler_ended(BlockId id, Place place, const LayerSet& groups, TransferId filler, bool ok);
  // The bytes turned out not to be there: the copies are gone, and no sequence holds them.
  void discard(BlockId id, Place place, const LayerSet& groups);
  void pin(BlockId id, Place place, const LayerSet& groups);
  void unpin(BlockId id, Place place, const LayerSet& groups);
  // Until the newest step in flight ends: the block, as a whole.
  void pin_for_step(BlockId id);
  void unpin_for_step(BlockId id);
  // It has so many tokens when a step in the making has ended, which also writes X in these groups.
  // Copies that do not grow with it are none any more.
  void set_written(BlockId id, uint32_t tokens, const Writes& writes, StepId step);
  // There is more of it than KV on the device.
  bool has_other_copies(BlockId id) const;
  // Only so many of its tokens count, on any tier.
  void cut(BlockId id, uint32_t tokens);
  // It is full and immutable; from now on it can be found while K and V can be had in every group, unless
  // another has its hash.
  void seal(BlockId id, const BlockHash* hash);
  // Published blocks whose copies on the device have become idle since the last call, in that order. None
  // where there is no other tier.
  std::vector<BlockId> take_newly_idle() { return std::exchange(newly_idle_, {}); }

  // Slabs of the host tier that come and go (SlabPool).
  void open_host_slab(uint32_t slab) { pools_[index_of(Tier::kHost)].open(slab); }
  bool host_slab_is_open(uint32_t slab) const {
    return !pools_[index_of(Tier::kHost)].is_absent(slab) && !pools_[index_of(Tier::kHost)].is_closed(slab);
  }
  bool host_slab_is_empty(uint32_t slab) const { return pools_[index_of(Tier::kHost)].is_empty(slab); }
  bool host_slab_is_needed(uint32_t slab) const { return pools_[index_of(Tier::kHost)].is_needed(slab); }
  // They are allocated no more, and are gone as soon as no sequence or transfer needs what lies there.
  void close_host_slabs(std::span<const uint32_t> slabs);
  // Undoes it for one that is not gone; false: it is gone, or was not closed.
  bool keep_host_slab(uint32_t slab) {
    SlabPool& pool = pools_[index_of(Tier::kHost)];
    if (!pool.is_closed(slab)) return false;
    pool.keep(slab);
    return true;
  }
  std::vector<uint32_t> take_departed_host_slabs() { return pools_[index_of(Tier::kHost)].take_departed(); }

  // Published blocks with idle copies there, the longest idle first.
  const BlockList& idle(Tier tier) const { return lru_[index_of(tier)]; }

  // --- Counting.
  FrameBudget budget(Tier tier) const;
  // Blocks with copies on the tier that can be evicted.
  uint32_t idle_blocks(Tier tier = Tier::kDevice) const { return lru_[index_of(tier)].size(); }
  // Cells that sequences hold, or that something in flight uses, and bytes of all forms of those.
  uint32_t used_cells(Tier tier, Form form = Form::kKv) const;
  uint64_t used_bytes(Tier tier) const;
  uint64_t total_bytes(Tier tier) const { return pools_[index_of(tier)].slabs() * shape(tier).slab_bytes; }
  // Sequences of which a count was changed by the doings of another since the last call.
  std::vector<SeqId> take_touched() { return std::exchange(touched_, {}); }

  // `loose_frames`: those that take_frame() gave and that were not given on, by place.
  Status check_integrity(const std::array<uint32_t, kPlaces>& loose_frames) const;

 private:
  Block& at(BlockId id) { return blocks_[raw(id)]; }
  bool exists(Place place) const { return shape(place.tier).cell_bytes[index_of(place.form)] > 0; }
  BlockId new_block();
  Owner& owner_of(Block& b, const Holdings& who);
  void set_wants(Owner& owner, Place place, const LayerSet& wants);
  void set_released(Owner& owner, Place place, const LayerSet& released);
  LayerSet substitutes(const Block& b, const Owner& owner, Place place, bool ready) const;
  // What an owner releases is given up where another copy is ready, and kept where there is none.
  void settle_released(Block& b, Owner& owner);
  void drop_copies(Block& b, Place place, const LayerSet& groups);
  LayerSet wanted(const Block& b, size_t place) const;
  void recount(Block& b);
  // After a hold or a pin came or went: copies that nothing needs become idle or are freed, and so is a block
  // without owners, pins and hash.
  void settle(BlockId id);
  void set_idle(Block& b, size_t place, const LayerSet& idle);
  void list_idle(BlockId id);
  void free_copies(Block& b, Place place, const LayerSet& groups);
  // Frames for the wished copies that are not there, and for anything; one behind the other where that can
  // be.
  void allocate(std::span<const Wish> wishes, Place place);
  void allocate(Place place, std::span<uint64_t> frames);
  void evict(BlockId id, Tier tier);
  void free_block(BlockId id);
  Adoptable adoptable(const Block& b) const;
  bool can_be_found(const Block& b) const;
  // Publishes it, or takes that back, as it can be found or not.
  void update_published(BlockId id);
  Status check_copies(uint32_t block, size_t place, std::set<uint64_t>& places) const;

  const CacheGeometry geometry_;
  const LayerSet all_;
  const std::array<TierShape, kTiers> shapes_;
  std::vector<size_t> existing_;  // places that there are
  std::array<SlabPool, kTiers> pools_;
  PrefixIndex& index_;
  const bool has_slower_tier_;
  std::vector<Block> blocks_;
  std::vector<BlockId> free_ids_;
  std::array<BlockList, kTiers> lru_;  // blocks with idle copies there, oldest first
  std::vector<BlockId> newly_idle_;
  std::vector<SeqId> touched_;
  std::array<uint32_t, kPlaces> coming_{};  // the sums of the blocks'
};

}  // namespace kvasir
