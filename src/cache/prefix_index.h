// Finds full blocks by hash, and keeps for every waiting sequence how much of its prompt is there already.
//
// A watch is moved by the events that concern it (a block published, evicted, taken or left), so that nobody
// looks a whole prompt up again at every step.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cache/block_hash.h"
#include "contract/ids.h"

namespace kvasir {

// Used by one thread.
class PrefixIndex {
 public:
  // How much of a watched chain is there: blocks [0, matched), of which `idle` are referenced by nobody.
  struct Match {
    uint32_t matched = 0;
    uint32_t idle = 0;
  };

  // The block with this hash, or kNoBlock.
  BlockId find(const BlockHash& hash) const;

  // Makes a full block findable; `idle`: nobody references it. False if another block has the hash already.
  bool publish(const BlockHash& hash, BlockId block, bool idle);
  // REQUIRES: published.
  void unpublish(const BlockHash& hash);
  // A published block's first reference came or its last one went.
  void set_idle(const BlockHash& hash, bool idle);

  // Watches a chain of block hashes for a sequence. REQUIRES: it is not watched.
  void watch(SeqId seq, std::vector<BlockHash> chain);
  // Unknown sequences are ignored.
  void unwatch(SeqId seq);
  // {} for a sequence that is not watched.
  Match match(SeqId seq) const;

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
    bool idle = false;
    std::vector<Watcher> watchers;  // those whose match reaches to this hash, or ends just before it
  };
  struct Watch {
    std::vector<BlockHash> chain;
    Match match;
    std::vector<uint32_t> places;  // in the list of chain[d]: leaving it must not search among thousands
  };

  void extend(SeqId seq, Watch& watch);
  void join(SeqId seq, Watch& watch, uint32_t depth);
  void leave(Watch& watch, uint32_t depth);

  std::unordered_map<BlockHash, Entry, BlockHashHasher> entries_;
  std::unordered_map<SeqId, Watch> watches_;
  std::unordered_set<SeqId> changed_;
  size_t published_ = 0;
};

}  // namespace kvasir
