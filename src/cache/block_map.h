// Blocks and their copies: who names a block, who has an interest in which of its copies, where each lies.
//
// A cell, a block of one layer group, has at most one copy of its K and V on each tier. A copy is there as
// long as a sequence has an interest in it, or a transfer or step in flight may still use it. A block that
// nobody names is idle if it can be found by its hash (it is then complete on the device, and on no other
// tier) and evicted, least recently used first, when frames run out; else it is freed.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cache/block_hash.h"
#include "cache/extent_pool.h"
#include "cache/prefix_index.h"
#include "cache/slab_pool.h"
#include "contract/frame_budget.h"
#include "contract/geometry.h"
#include "contract/ids.h"
#include "contract/layer_set.h"
#include "contract/link.h"
#include "contract/step.h"

namespace kvasir {

// The tiers that have copies, in the order of their indices.
constexpr std::array kCopyTiers = {Tier::kDevice, Tier::kHost};
constexpr size_t kCopyTierCount = kCopyTiers.size();
constexpr size_t index_of(Tier tier) {
  return static_cast<size_t>(tier);
}

// What one sequence holds, in cells, kept by the map as interests come and go.
struct Holdings {
  SeqId seq{};
  std::array<uint32_t, kCopyTierCount> cells{};
  std::array<uint32_t, kCopyTierCount> own{};  // that nobody else holds and nothing uses
  uint32_t leaving = 0;                        // on the device, until another copy is ready
  uint32_t filling = 0;                        // on the device, whose bytes have not come yet
  std::vector<uint32_t> device_in_group;       // blocks on the device, by layer group
  bool table_changed = true;                   // the frames of its blocks are not those they were
};

// Used by one thread.
class BlockMap {
 public:
  struct Owner {
    Holdings* who = nullptr;
    std::array<LayerSet, kCopyTierCount> wants;  // the copies in which it has an interest
    LayerSet leaving;                            // of the device's: until another copy is ready
    // As counted in *who.
    std::array<uint32_t, kCopyTierCount> own{};
    uint32_t filling = 0;
  };
  struct Copy {
    KvPlanes at;                      // of K and V, in the tier's memory
    uint32_t pins = 0;                // transfers that read or fill it
    uint32_t tokens = 0;              // on the host: so many of the block's tokens it has
    bool failed = false;              // one of those that fill it did
    std::vector<TransferId> fillers;  // that have not ended
  };
  struct Copies {
    LayerSet present;
    LayerSet ready;  // of those: the bytes are there
    LayerSet pinned;
    std::vector<Copy> by_group;
  };
  struct Block {
    bool used = false;
    std::array<Copies, kCopyTierCount> on;
    std::vector<Owner> owners;
    uint32_t pins = 0;       // steps and transfers in flight that may use it
    uint32_t step_pins = 0;  // of those: steps, which may use any copy on the device
    uint32_t tokens = 0;     // that have been written, or will be when the steps in flight end
    StepId last_write{};     // the newest step that writes to it
    uint32_t coming = 0;     // its cells on the device that come free when what is in flight has ended
    bool sealed = false;     // full and immutable
    bool published = false;
    bool idle = false;                 // published, named and pinned by nobody: in the list of idle blocks
    BlockHash hash;                    // of a sealed one
    std::list<BlockId>::iterator lru;  // valid while idle
  };

  BlockMap(const CacheGeometry& geometry, uint64_t device_bytes, uint64_t host_bytes, PrefixIndex& index);

  const Block& block(BlockId id) const { return blocks_[raw(id)]; }
  const std::vector<Block>& blocks() const { return blocks_; }
  const LayerSet& all_groups() const { return all_; }
  // The owner's line in a block. REQUIRES: it names it.
  const Owner& owner(BlockId id, const Holdings& who) const;

  // --- Names.
  // A new block that `who` names, with frames on the device in these groups, evicting where needed.
  BlockId create(Holdings& who, const LayerSet& device);
  // `who` names a block that is complete on the device, and has an interest in all of it there.
  void add_owner(BlockId id, Holdings& who);
  // It gives up the block and every interest in it.
  void remove_owner(BlockId id, Holdings& who);

  // --- Interests. Of the groups that are not there, frames are allocated (`near`: host frames right behind
  // it where that is free, and moves on).
  void want(BlockId id, Holdings& who, Tier tier, const LayerSet& groups, std::optional<uint64_t>& near);
  void unwant(BlockId id, Holdings& who, Tier tier, const LayerSet& groups);
  // As soon as the host's copy of each cell is ready (at once, where it is) the one on the device is
  // unwanted.
  void leave_device(BlockId id, Holdings& who, const LayerSet& groups);
  // The same of the host's copies where the device has one; those without stay.
  void leave_host(BlockId id, Holdings& who, const LayerSet& groups);

  // --- What becomes of bytes.
  // A transfer fills the copy, which will have all tokens of the block. It is ready when all such have ended;
  // or, if one failed, it is gone, with every interest in it.
  void add_filler(BlockId id, Tier tier, uint32_t group, TransferId filler);
  void filler_ended(BlockId id, Tier tier, uint32_t group, TransferId filler, bool ok);
#if defined(KVASIR_MUTANTS)
  // A fault: the host's copy counts as one of all the block's tokens.
  void believe_current(BlockId id, uint32_t group) {
    at(id).on[index_of(Tier::kHost)].by_group[group].tokens = at(id).tokens;
  }
#else
  void believe_current(BlockId, uint32_t) {}
#endif
  void pin(BlockId id, Tier tier, uint32_t group);
  void unpin(BlockId id, Tier tier, uint32_t group);
  // Until the newest step in flight ends: the block, as a whole.
  void pin_for_step(BlockId id);
  void unpin_for_step(BlockId id);
  void set_written(BlockId id, uint32_t tokens, StepId step);
  // Only so many of its tokens count, on any tier.
  void cut(BlockId id, uint32_t tokens);
  // It is full and immutable; from now on it can be found while it is complete on the device, unless another
  // has its hash.
  void seal(BlockId id, const BlockHash* hash);
  bool complete_on_device(BlockId id) const {
    return block(id).on[index_of(Tier::kDevice)].ready == all_;
  }

  // --- Counting.
  FrameBudget budget(Tier tier) const;
  uint32_t idle_blocks() const {
    return static_cast<uint32_t>(lru_.size());
  }
  // Cells that sequences hold, or that something in flight uses.
  uint32_t used_cells(Tier tier) const;
  uint32_t total_cells(Tier tier) const;
  // Sequences of which a count was changed by the doings of another since the last call.
  std::vector<SeqId> take_touched() {
    return std::exchange(touched_, {});
  }

  Status check_integrity() const;

 private:
  Block& at(BlockId id) {
    return blocks_[raw(id)];
  }
  Owner& owner_of(Block& b, const Holdings& who);
  void set_wants(Owner& owner, Tier tier, const LayerSet& wants);
  void set_leaving(Owner& owner, const LayerSet& leaving);
  Status check_copies(uint32_t block, Tier tier, const LayerSet& wanted, std::set<uint64_t>& places) const;
  void recount(Block& b);
  // After an interest or a pin went: copies that nobody needs are freed, and the block if it is nobody's.
  void settle(BlockId id);
  void free_copies(Block& b, Tier tier, LayerSet groups);
  KvPlanes allocate_on_device();
  void evict_oldest();
  void free_block(BlockId id);
  void leave_idle(BlockId id);
  void try_publish(BlockId id);
  void unpublish(Block& b);

  const CacheGeometry geometry_;
  const LayerSet all_;
  SlabPool device_;
  ExtentPool host_;
  PrefixIndex& index_;
  std::vector<Block> blocks_;
  std::vector<BlockId> free_ids_;
  std::list<BlockId> lru_;  // idle blocks, oldest first
  std::vector<SeqId> touched_;
  uint32_t coming_ = 0;  // the sum of the blocks' coming
};

}  // namespace kvasir
