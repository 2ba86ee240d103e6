// The map of copies: which tokens a sequence has, which blocks they are in, where each block's copies lie.
//
//   sequence --table--> block --cell per layer group--> copies (form, tier, state, frames)
//
// Identity (tokens, hashes, references), place (copies) and bytes (frames of the pool) are three things.
// A block belongs to the sequences that name it. When full it is immutable and may be shared; when nobody
// names it, it is idle: still findable by its hash, and evicted (least recently used first) when frames run
// out. Blocks that a sequence gives up stay pinned until the steps in flight at that moment have ended.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "cache/block_hash.h"
#include "cache/prefix_index.h"
#include "cache/slab_pool.h"
#include "contract/frame_budget.h"
#include "contract/geometry.h"
#include "contract/ids.h"
#include "contract/interval.h"
#include "contract/step.h"

namespace kvasir {

struct CacheOptions {
  CacheGeometry geometry;
  uint64_t device_bytes = 0;  // of K/V frames on the device tier
  bool prefix_caching = true;
  std::string numerics_id;  // part of every block's hash
};

// Used by one thread.
class KvCache {
 public:
  explicit KvCache(const CacheOptions& options);

  // What a View says about one sequence's cells.
  struct Summary {
    uint32_t ready_tokens = 0;
    uint32_t device_blocks = 0;
    uint32_t own_device_blocks = 0;  // named by this sequence alone
    uint32_t cached_tokens = 0;      // that it could adopt
    uint32_t cached_idle_blocks = 0;
    uint32_t promised_blocks = 0;
  };

  // --- Sequences. A new one waits, and holds nothing.
  void add_sequence(SeqId id, std::vector<Token> tokens, std::string_view salt);
  void append_token(SeqId id, Token token);
  // Gives up its blocks and promises.
  void remove_sequence(SeqId id);
  bool contains(SeqId id) const { return sequences_.contains(id); }
  std::span<const Token> tokens(SeqId id) const { return at(id).tokens; }
  Summary summary(SeqId id) const;
  // Sequences whose summary was changed by somebody else's doings since the last call.
  std::vector<SeqId> take_changed();

  // --- What the committer does.
  // Names the published blocks of [0, tokens). REQUIRES: they are there, and the sequence holds no block.
  void adopt(SeqId id, uint32_t tokens);
  // Keeps blocks for the sequence until it allocates them.
  void promise(SeqId id, uint32_t blocks);
  // What is left of its promises ends.
  void end_promise(SeqId id);
  // Allocates what [ready, end) still lacks, evicting idle blocks where needed, and counts [0, end) as ready
  // for the steps that follow. REQUIRES: the plan's arithmetic said that it fits.
  void extend(SeqId id, uint32_t end);
  // Gives up all cells and promises; the sequence waits again.
  void drop_all(SeqId id);
  // It gave up its cells at least once: what it runs next is (in part) a recomputation.
  bool was_dropped(SeqId id) const { return at(id).generation > 0; }
  // Appends the frames of blocks [0, blocks) x groups to `out`.
  void append_frames(SeqId id, uint32_t blocks, std::vector<KvFrames>& out) const;

  // --- Steps, in order.
  void step_submitted(StepId step, std::span<const StepSlice> slices);
  // The oldest step has ended. `ok`: what it wrote is valid; blocks that it filled become findable.
  void step_ended(StepId step, bool ok);

  FrameBudget device_budget() const;
  uint32_t total_blocks() const;
  uint32_t idle_blocks() const { return static_cast<uint32_t>(lru_.size()); }
  uint32_t used_blocks() const { return live_blocks_ - idle_blocks(); }
  const CacheGeometry& geometry() const { return options_.geometry; }

  // Counts everything again from the ground: references, pins, idle blocks, frames, promises, hashes.
  Status check_integrity() const;

 private:
  enum class CopyState : uint8_t { kFilling, kReady };
  struct Copy {
    Form form = Form::kKv;
    Tier tier = Tier::kDevice;
    CopyState state = CopyState::kFilling;
    KvFrames frames;
  };
  struct Cell {
    std::vector<Copy> copies;
  };
  struct Block {
    std::vector<Cell> cells;    // by layer group; empty: the id is unused
    std::vector<SeqId> owners;  // sequences that name it
    uint32_t pins = 0;          // steps in flight that may still use it
    bool published = false;
    BlockHash hash;
    std::list<BlockId>::iterator lru;  // valid while idle
    bool idle = false;                 // published, named and pinned by nobody: in lru_
  };
  struct Sequence {
    std::vector<Token> tokens;
    std::vector<BlockHash> hashes;  // of the full blocks of known tokens; [0] is the chain's root
    std::vector<BlockId> table;
    uint32_t ready_tokens = 0;   // when the steps submitted so far have ended
    uint32_t sealed_blocks = 0;  // full and published, or found to be published already
    uint32_t own_blocks = 0;
    uint32_t promised = 0;
    uint64_t generation = 0;  // raised by drop_all(): what older steps wrote is nobody's any more
#if defined(KVASIR_MUTANTS)
    std::vector<KvFrames> stale_frames;
#endif
  };
  struct StepRecord {
    StepId id;
    struct Part {
      SeqId seq;
      uint32_t end;
      uint64_t generation;
    };
    std::vector<Part> parts;
    std::vector<BlockId> pinned;  // given up while this was the newest step
  };

  Sequence& at(SeqId id);
  const Sequence& at(SeqId id) const;
  Block& block(BlockId id) {
    return blocks_[raw(id)];
  }
  const Block& block(BlockId id) const {
    return blocks_[raw(id)];
  }

  BlockId allocate_block();
  void evict_oldest();
  void free_block(BlockId id);
  void add_owner(BlockId id, SeqId seq);
  void remove_owner(BlockId id, SeqId seq);
  void settle(BlockId id);  // after the last reference or pin went
  void leave_idle(BlockId id);
  void seal(SeqId id, Sequence& seq, uint32_t done_tokens);
  void update_hashes(Sequence& seq) const;
  void give_up_blocks(SeqId id, Sequence& seq);
  void watch(SeqId id, Sequence& seq);

  const CacheOptions options_;
  SlabPool pool_;
  PrefixIndex index_;
  std::unordered_map<SeqId, Sequence> sequences_;
  std::vector<Block> blocks_;
  std::vector<BlockId> free_ids_;
  std::list<BlockId> lru_;  // idle blocks, oldest first
  std::deque<StepRecord> in_flight_;
  std::vector<SeqId> touched_;  // own_blocks changed by another sequence
  uint32_t live_blocks_ = 0;
  uint32_t pinned_blocks_ = 0;  // named by nobody, pinned by steps in flight
  uint32_t promised_blocks_ = 0;
};

}  // namespace kvasir
