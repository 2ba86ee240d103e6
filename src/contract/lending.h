// KV cells that an instance and its peers lend each other: the interface of the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "contract/ids.h"

namespace kvasir {

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
};

// Memory that a request waits for. The request that arrived first goes first, on whichever instance it is.
struct MemoryClaim {
  uint32_t cells = 0;       // 0: no request waits
  Nanos since = INT64_MIN;  // arrival of the request, by this instance's clock
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
