// Tells which blocks a request would find, as that changes: the source of CacheEvent.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/blocks/block_hash.h"
#include "contract/cache_events.h"
#include "contract/ids.h"

namespace kvasir {

// A block is told when its hash can be found, its tokens were described, and the block before it is told:
// then a request with its prompt would reuse it. Whether cells of its windowed layer groups are still there
// is not told. Used by one thread.
class BlockEvents {
 public:
  // The block has this hash and these tokens from now on, and is the `number`th of its prompt. `parent`: the
  // hash of the block before it; null for the first. REQUIRES: the block cannot be found, or is not
  // described.
  void describe(BlockId id, const BlockHash& hash, uint32_t number, const BlockHash* parent,
                std::span<const Token> tokens);
  // The block has tokens that no event may contain. REQUIRES: as describe()
  void conceal(BlockId id);
  bool describes(BlockId id) const { return raw(id) < blocks_.size() && blocks_[raw(id)].described; }

  // The block can be found, on this tier; it may have been so before, also on another. None: it cannot.
  void found(BlockId id, std::optional<Tier> tier);

  // The block `before`, which can be found, is found no more, but `after` is, with the same hash, on this
  // tier.
  void replaced(BlockId before, BlockId after, Tier tier);

  // What has changed since the last call.
  std::vector<CacheEvent> take() { return std::exchange(events_, {}); }
  // kCleared, and all blocks that are told, each behind its parent.
  std::vector<CacheEvent> everything() const;

 private:
  // By the hash of the parent. A tree, so that an entry is erased in constant time however many siblings it
  // has.
  using Children = std::multimap<uint64_t, BlockId>;
  struct Block {
    uint64_t hash = 0;
    std::optional<uint64_t> parent;
    uint32_t number = 0;
    bool described = false;
    bool told = false;
    std::optional<Tier> tier;       // on which it can be found
    Children::iterator child = {};  // its entry in by_parent_. Valid while it can be found and has a parent
    std::vector<Token> tokens;      // kept with the block, so that they can be told again
  };
  Block& at(BlockId id);
  CacheEvent stored(const Block& block) const;
  CacheEvent removed(const Block& block) const;
  bool parent_is_told(const Block& block) const;
  // Of those that can be found and are described: by their hash, and by that of their parent.
  void add(BlockId id);
  void remove(BlockId id);
  // Appends the children of what is in the list and of what is appended, if they are `told` or are not.
  void append_descendants(std::vector<BlockId>& out, bool told) const;

  std::vector<Block> blocks_;  // by block
  std::unordered_map<uint64_t, BlockId> by_hash_;
  Children by_parent_;
  std::vector<CacheEvent> events_;
};

}  // namespace kvasir
