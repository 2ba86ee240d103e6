// Cells of KV that an instance and its peers lend each other, as its engine deals with them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "contract/ids.h"

namespace kvasir {

// What an instance has to lend: its own frames of KV. Used by the engine's thread.
class LendableCells {
 public:
  struct Frame {
    Tier tier = Tier::kDevice;
    uint64_t at = 0;  // byte of the tier's memory
    friend bool operator==(const Frame&, const Frame&) = default;
  };

  virtual ~LendableCells() = default;

  // So many frames that nobody needs, the slower tier's first; or none, if there are not so many.
  virtual std::vector<Frame> take(uint32_t cells) = 0;
  virtual void give_back(std::span<const Frame> frames) = 0;
  // That nobody needs now, and in all.
  virtual uint32_t free_cells() const = 0;
  virtual uint32_t total_cells() const = 0;
};

// Memory that a request waits for. Of two requests the one that came earlier goes first, wherever it is.
struct MemoryClaim {
  uint32_t cells = 0;       // 0: nobody waits
  Nanos since = INT64_MIN;  // when the request came, by this instance's clock
};

// What the engine has to say in a turn. Borrowed cells are numbered from 0. A number may be granted again
// when the engine has returned it, which it does in any case, also with what was recalled or lost.
struct LendingRequest {
  uint32_t borrow = 0;             // cells, beside those that were asked for before
  std::vector<uint32_t> returned;  // borrowed cells in which nothing lies any more
  // Of its own cells that are lent: so many are needed here, for a request as old as `own`.
  uint32_t recall = 0;
  // What a request of its own needs of its own cells: no later one of a peer is lent them.
  MemoryClaim own;
  // What a request of its own lacks of its peers' cells, in all; `borrow` is for it.
  MemoryClaim lacking;
  // When the oldest request came that may need what is borrowed; INT64_MAX: there is none.
  Nanos needed_since = INT64_MAX;
};

// What has happened since the turn before.
struct LendingEvents {
  std::vector<uint32_t> granted;   // borrowed cells that are there from now on
  std::vector<uint32_t> recalled;  // that are to be returned
  std::vector<uint32_t> kept;      // that were recalled, and may stay
  std::vector<uint32_t> lost;      // that are not there any more: their bytes are gone
  uint32_t refused = 0;            // of the cells asked for: nobody lends them
  Nanos recalled_by = 0;           // when the first of those recalled now is taken back by force
  // What the first of the requests of peers lacks, as far as this instance may lend it, and since when: what
  // came here after that goes behind it. So in each turn.
  MemoryClaim awaited = {0, INT64_MAX};
};

// Used by the engine's thread, but for set_wake().
class Lending {
 public:
  virtual ~Lending() = default;

  // Once in each turn of the engine's loop, and after each call of `wake`. Never blocks.
  virtual LendingEvents turn(const LendingRequest& request, LendableCells& own) = 0;

  // `wake` is called, on any thread, when a turn has something to do. Before the first turn(); an empty one
  // ends it, and waits while it runs.
  virtual void set_wake(std::function<void()> wake) = 0;
};

}  // namespace kvasir
