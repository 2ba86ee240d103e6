// KV cells that an instance and its peers lend each other: the interface of the engine.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "contract/ids.h"

namespace kvasir {

// What a block's tokens and all before it are, as BlockHash has it.
using PrefixHash = std::array<uint64_t, 2>;

// The KV frames that an instance can lend. Used by the engine's thread.
class LendableCells {
 public:
  struct Frame {
    Tier tier = Tier::kDevice;
    uint64_t at = 0;  // byte offset in the tier's memory
    friend bool operator==(const Frame&, const Frame&) = default;
  };

  virtual ~LendableCells() = default;

  // Takes `cells` unused frames, those of the slower tier first. Empty if there are fewer.
  virtual std::vector<Frame> take(uint32_t cells) = 0;
  virtual void give_back(std::span<const Frame> frames) = 0;
  // Frames that are unused now, and all frames.
  virtual uint32_t free_cells() const = 0;
  virtual uint32_t total_cells() const = 0;

  // Cached blocks that peers may read: as many of the chain's first ones as are here. Their frames, block by
  // block and in a block group by group, keep their bytes until hide_prefix().
  struct Prefix {
    uint64_t id = 0;  // 0: there are none
    std::vector<Frame> frames;
    uint32_t blocks = 0;
  };
  virtual Prefix show_prefix(std::span<const PrefixHash>) { return {}; }
  // A peer attends to the first `blocks` for as long as it wants: they are lent from now on, until
  // hide_prefix(). The frames of the others are shown no longer.
  virtual void keep_prefix(uint64_t, uint32_t /*blocks*/) {}
  virtual void hide_prefix(uint64_t) {}

  // A block: its tokens, and the cells of its KV. 0 tokens: its blocks are not lent as they are.
  struct BlockShape {
    uint32_t tokens = 0;
    uint32_t cells = 1;
  };
  virtual BlockShape block_shape() const { return {}; }
  // As take(), but frames with the KV of the chain's first blocks, as many as are here, block by block and in
  // a block group by group: the blocks are lent as they are. Nothing: some are in use, and may be had later.
  virtual std::optional<std::vector<Frame>> take_blocks(std::span<const PrefixHash>) {
    return std::vector<Frame>();
  }
};

// Memory that a request waits for. The request that arrived first goes first, on whichever instance it is.
struct MemoryClaim {
  uint32_t cells = 0;       // 0: no request waits
  Nanos since = INT64_MIN;  // arrival of the request, by this instance's clock
};

// Blocks of a prompt that this instance lacks, in order, and that peers may have.
struct PrefixQuestion {
  uint64_t id = 0;  // the engine's; never used twice
  std::vector<PrefixHash> chain;
  PrefixHash beginning{};  // of the prompt's first block, of which prompts that share anything have the same
  Nanos until = 0;         // an answer is of no use later
};
// The cells of the first blocks of the chain, block by block and in a block group by group, which can be read
// like borrowed cells (PeerMemory::read()) until PrefixQuestion::id is in LendingRequest::prefixes_done.
// Their numbers are above those of borrowed cells. They may be lost at any moment: then reads fail.
struct PrefixAnswer {
  uint64_t id = 0;
  std::vector<uint32_t> cells;  // none: no peer has any
  std::string peer;             // whose they are
  // What attending to all of these cells there is believed to cost instead, in all layers: for each step with
  // such rows, and for each of the rows. None: unknown.
  struct Attending {
    double step_s = 0;
    double row_s = 0;
  };
  std::optional<Attending> attending{};
};
// Of the cells that were found, the first ones are to be attended where they lie: the peer is asked to keep
// them for as long as this instance wants, as if it had lent them.
struct PrefixKept {
  uint64_t id = 0;     // of the question
  uint32_t cells = 0;  // so many
  Nanos since = 0;     // when the request arrived
};
// Those cells, under other numbers, which are neither those of borrowed nor of shown cells: they can be read
// and attended (PeerMemory), and never written. They are returned, recalled and lost like borrowed ones.
// None: the peer does not keep them; then what was shown can be read as before.
struct PrefixKeptAnswer {
  uint64_t id = 0;
  std::vector<uint32_t> cells;
};

// The first rows of a prompt, which a peer is to compute: it lends the memory in which their K and V then
// lie.
struct PromptQuestion {
  static constexpr uint32_t kMostTokens = 1u << 20;

  uint64_t id = 0;            // the engine's; never used twice
  std::vector<Token> tokens;  // of whole leaves of attention
  uint32_t cells = 0;         // that their blocks take; so many can be borrowed until it is answered
  Nanos since = 0;            // when the request arrived
  Nanos until = 0;            // an answer is of no use later
};
// Borrowed cells with the first blocks of these tokens, block by block and in a block group by group. They
// are usable from now on as granted ones are, and are returned, recalled and lost like these.
struct PromptAnswer {
  uint64_t id = 0;
  std::vector<uint32_t> cells;  // none: no peer has computed any
};
// Rows that a peer asks this instance to compute: all of these tokens, or none.
struct PromptJob {
  uint64_t id = 0;
  std::vector<Token> tokens;
};

// What the engine requests in a turn. Borrowed cells are numbered from 0. A number may be granted again after
// the engine has returned it. The engine returns every number, including those of recalled and lost cells.
struct LendingRequest {
  uint32_t borrow = 0;             // cells, in addition to earlier requests
  std::vector<uint32_t> returned;  // borrowed cells that are empty now
  // Number of its lent cells that it needs back, for a request as old as `own`.
  uint32_t recall = 0;
  // Own cells that a request of this instance needs: they are not lent to a later request of a peer.
  MemoryClaim own;
  // Total of peers' cells that a request of this instance still needs; `borrow` is for this request.
  MemoryClaim missing;
  // Of the cells that it asks for and has not been granted: so many at once or none, so that a long request
  // neither starts on a part nor keeps a part from others. While it waits, later requests are granted memory
  // only if that cannot delay it as far as the `hold` of all is known. 0 or 1: whatever there is.
  uint32_t least = 0;
  // How long it expects to keep them; 0: unknown.
  Nanos hold = 0;
  // Arrival of the oldest request that may need the borrowed cells; INT64_MAX: there is none.
  Nanos needed_since = INT64_MAX;
  std::vector<PrefixQuestion> prefixes_wanted;
  // Questions whose answer is of no use any more, also before it comes.
  std::vector<uint64_t> prefixes_done;
  std::vector<PrefixKept> prefixes_kept;
  std::vector<PromptQuestion> prompts_wanted;
  std::vector<uint64_t> prompts_done;  // questions whose answer is of no use any more
  // Jobs of peers that have ended: their blocks are here, idle, or soon will be; or they are refused.
  struct Computed {
    uint64_t id = 0;
    std::vector<PrefixHash> chain;  // of the blocks; none: it is refused
  };
  std::vector<Computed> prompts_computed;
};

// What has happened since the previous turn.
struct LendingEvents {
  std::vector<uint32_t> granted;   // borrowed cells that are usable from now on
  std::vector<uint32_t> recalled;  // cells that must be returned
  std::vector<uint32_t> kept;      // recalled cells that may stay after all
  std::vector<uint32_t> lost;      // cells that no longer exist: their bytes are gone
  uint32_t refused = 0;            // requested cells that no peer lends
  Nanos recalled_by = 0;           // when the first cell recalled now is taken back by force
  // The most that the peers of this moment lend, all together; UINT32_MAX: unknown. Reported in every turn.
  uint32_t lendable = UINT32_MAX;
  // The cells that the oldest waiting request of a peer still needs and that this instance may lend, and its
  // arrival: requests that arrived here later go behind it. Reported in every turn.
  MemoryClaim awaited = {0, INT64_MAX};
  std::vector<PrefixAnswer> prefixes_found;     // one for each question that is not done
  std::vector<PrefixKeptAnswer> prefixes_kept;  // the same for what is to be kept
  std::vector<PromptAnswer> prompts_found;      // the same
  std::vector<PromptJob> prompts_to_compute;
  std::vector<uint64_t> prompts_dropped;  // jobs whose results are of no use any more
};

// Used by the engine's thread, except set_wake().
class Lending {
 public:
  virtual ~Lending() = default;

  // The engine calls it once in each turn of its loop and after each call of `wake`. Never blocks.
  virtual LendingEvents turn(const LendingRequest& request, LendableCells& own) = 0;

  // Instead of a turn, or after one that has thrown std::bad_alloc: the engine begins again with an empty
  // cache. All that is borrowed or lent is given up. When this returns, no peer reads or writes this
  // instance's memory, and what is under way with borrowed cells fails soon. May be called again after it has
  // thrown.
  virtual void start_anew() = 0;

  // `wake` is called, on any thread, when a turn has something to do. REQUIRES: called before the first
  // turn(). An empty function ends the calls, and set_wake() then waits for a running call to return.
  virtual void set_wake(std::function<void()> wake) = 0;
};

}  // namespace kvasir
