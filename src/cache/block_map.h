// Blocks and their copies: who names a block, who has an interest in which of its copies, where each lies.
//
// A cell, a block of one layer group, has at most one copy at each place (a form on a tier). A copy is there
// as long as a sequence has an interest in it, or a transfer or step in flight may still use it. A block that
// is full and of which K and V can be had in every group is *published*: it can be found by its hash. Its
// copies that nobody needs are kept, *idle*, until their tier has no other room: then those of the block
// that was needed last longest ago are evicted. What is left of a block that can be found no more is freed.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "cache/block_hash.h"
#include "cache/place.h"
#include "cache/prefix_index.h"
#include "cache/slab_pool.h"
#include "contract/frame_budget.h"
#include "contract/geometry.h"
#include "contract/ids.h"
#include "contract/layer_set.h"
#include "contract/link.h"
#include "contract/step.h"

namespace kvasir {

// What one sequence holds, in cells, kept by the map as interests come and go.
struct Holdings {
  SeqId seq{};
  std::array<uint32_t, kPlaces> cells{};
  std::array<uint32_t, kPlaces> own{};    // that nobody else holds and nothing uses
  uint32_t leaving = 0;                   // KV on the device, until another copy is ready
  uint32_t filling = 0;                   // KV on the device, whose bytes have not come yet
  uint32_t bare = 0;                      // cells of its blocks of which it holds neither KV nor X
  std::vector<uint32_t> device_in_group;  // blocks with KV on the device, by layer group
  bool table_changed = true;              // the frames of its blocks are not those they were

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
    std::array<LayerSet, kPlaces> wants;    // the copies in which it has an interest
    std::array<LayerSet, kPlaces> leaving;  // of those: until another copy is ready
    // As counted in *who.
    std::array<uint32_t, kPlaces> own{};
    uint32_t filling = 0;

    const LayerSet& at(Place place) const { return wants[index_of(place)]; }
    // The groups in which it holds a copy that K and V can be had from.
    LayerSet covered() const;
  };
  struct Copy {
    uint64_t at = 0;                  // in the tier's memory
    uint32_t pins = 0;                // transfers that read or fill it
    uint32_t tokens = 0;              // so many of the block's tokens it has
    bool failed = false;              // one of those that fill it did
    std::vector<TransferId> fillers;  // that have not ended
  };
  struct Copies {
    LayerSet present;
    LayerSet ready;    // of those: the bytes are there
    LayerSet current;  // of those present: of all the block's tokens
    LayerSet pinned;
    LayerSet idle;
    std::vector<Copy> by_group;

    LayerSet usable() const { return ready & current; }
  };
  struct Block {
    bool used = false;
    std::array<Copies, kPlaces> on;
    std::vector<Owner> owners;
    uint32_t pins = 0;       // steps and transfers in flight that may use it
    uint32_t step_pins = 0;  // of those: steps, which may use any copy on the device
    uint32_t tokens = 0;     // that have been written, or will be when the steps in flight end
    StepId last_write{};     // the newest step that writes to it
    bool sealed = false;     // full and immutable
    bool published = false;
    bool owned_since_noted = false;          // somebody had it since it was last noted as newly idle
    BlockHash hash;                          // of a sealed one
    bool counted_shared = false;             // at the last count every copy had several owners, and was ready
    std::array<uint32_t, kPlaces> coming{};  // cells that come free when what is in flight has ended
    // Its places in the lists of what can be evicted, by tier; valid where `listed`.
    std::array<std::list<BlockId>::iterator, kTiers> lru;
    std::array<bool, kTiers> listed{};

    const Copies& at(Place place) const { return on[index_of(place)]; }
  };

  BlockMap(const CacheGeometry& geometry, const std::array<uint64_t, kTiers>& tier_bytes, PrefixIndex& index);

  const Block& block(BlockId id) const { return blocks_[raw(id)]; }
  const std::vector<Block>& blocks() const { return blocks_; }
  const LayerSet& all_groups() const { return all_; }
  const TierShape& shape(Tier tier) const { return shapes_[index_of(tier)]; }
  // The owner's line in a block. REQUIRES: it names it.
  const Owner& owner(BlockId id, const Holdings& who) const;

  // --- Names.
  // A new block that `who` names, whose rows of a step in the making write these copies on the device,
  // evicting where needed.
  BlockId create(Holdings& who, const Writes& device);
  // `who` names a published block, and has an interest in one copy of each cell, the cheapest.
  void add_owner(BlockId id, Holdings& who);
  // It gives up the block and every interest in it.
  void remove_owner(BlockId id, Holdings& who);
  // A block that nobody names, found by its hash, of whose cells these copies lie on the disk, where they
  // take their places. Returns how many it has taken: 0 if there is no such room, or if another block has the
  // hash.
  struct Found {
    Form form = Form::kKv;
    uint32_t group = 0;
    uint64_t at = 0;
  };
  size_t restore(const BlockHash& hash, std::span<const Found> copies);

  // --- Interests. Of the groups that are not there, frames are allocated (`near`: right behind it where that
  // is free, and moves on).
  void want(BlockId id, Holdings& who, Place place, const LayerSet& groups, std::optional<uint64_t>& near);
  void unwant(BlockId id, Holdings& who, Place place, const LayerSet& groups);
  // Gives up copies, also the last ones; but where one of its others is still on its way, when that is ready.
  void drop(BlockId id, Holdings& who, Place place, const LayerSet& groups);
  // Gives up a copy as soon as another is ready from which the same can be had, and in which it then has an
  // interest; where there is none, nothing changes.
  void leave(BlockId id, Holdings& who, Place place, const LayerSet& groups);
  // A frame for what a step in flight makes, which is nobody's copy yet; it is given to attach() or back.
  uint64_t take_frame(Place place);
  void give_back_frame(Place place, uint64_t at);
  // It is a copy now, of all the block's tokens, in which `who` has an interest; unless there is one.
  void attach(BlockId id, Holdings& who, Place place, uint32_t group, uint64_t at);
  // A copy that a transfer will fill, in which nobody has an interest yet. REQUIRES: there is none.
  void add_unowned(BlockId id, Place place, const LayerSet& groups, std::optional<uint64_t>& near);

  // --- What becomes of bytes.
  // A transfer fills the copy, which will have all tokens of the block. It is ready when all such have ended;
  // or, if one failed, it is gone, with every interest in it.
  void add_filler(BlockId id, Place place, uint32_t group, TransferId filler);
  void filler_ended(BlockId id, Place place, uint32_t group, TransferId filler, bool ok);
  // The bytes turned out not to be there: the copy is gone, with every interest in it.
  void discard(BlockId id, Place place, uint32_t group);
  void pin(BlockId id, Place place, uint32_t group);
  void unpin(BlockId id, Place place, uint32_t group);
  // Until the newest step in flight ends: the block, as a whole.
  void pin_for_step(BlockId id);
  void unpin_for_step(BlockId id);
  // It has so many tokens when a step in the making has ended, which also writes X and H in these groups.
  // Copies that do not grow with it are none any more.
  void set_written(BlockId id, uint32_t tokens, const Writes& writes, StepId step);
  // There is more of it than KV on the device.
  bool has_other_copies(BlockId id) const;
  // Only so many of its tokens count, on any tier.
  void cut(BlockId id, uint32_t tokens);
  // It is full and immutable; from now on it can be found while K and V can be had in every group, unless
  // another has its hash.
  void seal(BlockId id, const BlockHash* hash);
  // Published blocks that came to be needed by nobody on the device since the last call, in that order. None
  // where there is no other tier.
  std::vector<BlockId> take_newly_idle() { return std::exchange(newly_idle_, {}); }

  // Slabs of the host tier that come and go (SlabPool).
  void open_host_slab(uint32_t slab) { pools_[index_of(Tier::kHost)].open(slab); }
  bool host_slab_is_open(uint32_t slab) const {
    return !pools_[index_of(Tier::kHost)].is_absent(slab) && !pools_[index_of(Tier::kHost)].is_closed(slab);
  }
  bool host_slab_is_empty(uint32_t slab) const { return pools_[index_of(Tier::kHost)].is_empty(slab); }
  bool host_slab_is_needed(uint32_t slab) const { return pools_[index_of(Tier::kHost)].is_needed(slab); }
  // They are given to nobody any more, and are gone as soon as nobody needs what lies there.
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
  const std::list<BlockId>& idle(Tier tier) const { return lru_[index_of(tier)]; }

  // --- Counting.
  FrameBudget budget(Tier tier) const;
  // Blocks with copies on the tier that can be evicted.
  uint32_t idle_blocks(Tier tier = Tier::kDevice) const {
    return static_cast<uint32_t>(lru_[index_of(tier)].size());
  }
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
  void set_leaving(Owner& owner, Place place, const LayerSet& leaving);
  LayerSet substitutes(const Block& b, const Owner& owner, Place place, bool ready) const;
  // What an owner leaves is given up where another copy is ready, and not left any more where there is none.
  void settle_leaving(Block& b, Owner& owner);
  void drop_copy(BlockId id, Place place, uint32_t group);
  LayerSet wanted(const Block& b, size_t place) const;
  void recount(Block& b);
  // After an interest or a pin came or went: copies that nobody needs become idle or are freed, and the block
  // is freed if it is nobody's.
  void settle(BlockId id);
  void set_idle(Block& b, size_t place, const LayerSet& idle);
  void list_idle(BlockId id);
  void free_copies(Block& b, Place place, const LayerSet& groups);
  uint64_t allocate(Place place, std::optional<uint64_t> near);
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
  std::array<std::list<BlockId>, kTiers> lru_;  // blocks with idle copies there, oldest first
  std::vector<BlockId> newly_idle_;
  std::vector<SeqId> touched_;
  std::array<uint32_t, kPlaces> coming_{};  // the sums of the blocks'
};

}  // namespace kvasir
