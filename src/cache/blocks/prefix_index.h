// Finds full blocks by hash, and tracks for each waiting sequence how much of its prompt is cached.
//
// Events update the watches that they concern (a block published, evicted, adopted or given up), so no step
// looks up a whole prompt.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/pooled_map.h"
#include "cache/blocks/block_events.h"
#include "cache/blocks/block_hash.h"
#include "cache/blocks/place.h"
#include "contract/geometry.h"
#include "contract/ids.h"

namespace kvasir {

// The copies that a sequence would hold if it adopted full blocks, one for each cell, by place; and those of
// them that are idle now.
struct Adoptable {
  std::array<uint32_t, kPlaces> cells{};
  std::array<uint32_t, kPlaces> idle{};
  // The same of the cells in windowed layer groups only.
  std::array<uint32_t, kPlaces> windowed_cells{};
  std::array<uint32_t, kPlaces> windowed_idle{};
  bool lacks_windowed = false;  // some windowed cells have no copy

  void add(const Adoptable& o, uint32_t times) {
    for (size_t p = 0; p < cells.size(); ++p) {
      cells[p] += times * o.cells[p];
      idle[p] += times * o.idle[p];
      windowed_cells[p] += times * o.windowed_cells[p];
      windowed_idle[p] += times * o.windowed_idle[p];
    }
  }
  void add_windowed(const Adoptable& o, uint32_t times) {
    for (size_t p = 0; p < cells.size(); ++p) {
      cells[p] += times * o.windowed_cells[p];
      idle[p] += times * o.windowed_idle[p];
      windowed_cells[p] += times * o.windowed_cells[p];
      windowed_idle[p] += times * o.windowed_idle[p];
    }
  }
  // The slowest tier with such a copy.
  Tier slowest() const;
  friend bool operator==(const Adoptable&, const Adoptable&) = default;
};

// Used by one thread.
class PrefixIndex {
 public:
  // How much of a watched chain is cached: blocks [0, matched), and the copies to adopt. Of windowed layer
  // groups these are only the blocks that are not dead for a sequence that goes on there.
  struct Match {
    uint32_t matched = 0;
    Adoptable what;
  };

  // `events` is told what can be found, and outlives the index. Null: no events are made.
  explicit PrefixIndex(BlockEvents* events = nullptr, const CacheGeometry& geometry = {})
      : events_(events), geometry_(geometry) {}

  // The block with this hash, or kNoBlock.
  BlockId find(const BlockHash& hash) const;

  // Makes a full block findable. False if another block has the hash already.
  bool publish(const BlockHash& hash, BlockId block, const Adoptable& what);
  // The block takes the place of the one with this hash. REQUIRES: there is one.
  void replace(const BlockHash& hash, BlockId block, const Adoptable& what);
  // REQUIRES: published.
  void unpublish(const BlockHash& hash);
  // What can be adopted of a published block may have changed.
  void update(BlockId block, const Adoptable& what);

  // Watches a chain of block hashes for a sequence. REQUIRES: it is not watched.
  void watch(SeqId seq, std::vector<BlockHash> chain);
  // Unknown sequences are ignored.
  void unwatch(SeqId seq);
  // {} for a sequence that is not watched.
  Match match(SeqId seq) const;
  // Of that, the leading blocks that lie wholly on the device. Takes time linear in their number.
  Match match_on_device(SeqId seq) const;

  // Watched sequences whose match has changed since the last call, in no particular order.
  std::vector<SeqId> take_changed();

  size_t published() const { return published_; }

 private:
  struct Watcher {
    SeqId seq{};
    uint32_t depth = 0;
  };
  struct Entry {
    BlockId block = kNoBlock;
    std::vector<Watcher> watchers;  // those whose match reaches to this hash, or ends just before it
  };
  // A published block. Its state changes often, mostly while no sequence watches it. Then only this record is
  // touched and not the entry, which would be a cache miss.
  struct Published {
    Entry* entry = nullptr;
    Adoptable what;
    bool watched = false;
  };
  struct Watch {
    std::vector<BlockHash> chain;
    Match match;
    std::vector<uint32_t> places;  // index in the list of chain[d], so that removal does not search it
    bool changed = false;
  };

  Match with_window(const Watch& watch, Match match) const;
  void extend(SeqId seq, Watch& watch);
  void join(SeqId seq, Watch& watch, uint32_t depth);
  void remove(Watch& watch, uint32_t depth);

  void note_change(SeqId seq, Watch& watch);
  // The list of the entry's watchers has changed.
  void note_watchers(const Entry& entry);

  BlockEvents* const events_;
  const CacheGeometry geometry_;
  PooledMap<BlockHash, Entry, BlockHashHasher> entries_;
  std::vector<Published> blocks_;  // by block
  PooledMap<SeqId, Watch> watches_;
  std::vector<SeqId> changed_;  // those whose Watch says so, and some that are not watched any more
  size_t published_ = 0;
};

}  // namespace kvasir
