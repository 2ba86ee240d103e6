// What an engine tells others about its prefix cache: which full blocks requests can reuse, as that changes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "contract/ids.h"

namespace kvasir {

struct CacheEvent {
  // kStored: a request with its tokens, and those before it, would reuse the block from now on. kRemoved: not
  // any more. kCleared: none is reused, of all blocks. In layer groups with a window cells of a stored block
  // may be gone: it is then reused only by requests that share the prompt up to a place whose window is
  // there. A block that begins to come from another tier is removed there and stored here.
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };

  Kind kind = Kind::kCleared;
  // The slowest on which a sequence that reuses the block would find a part of it.
  Tier tier = Tier::kDevice;
  uint64_t hash = 0;               // 64 bits of the block's hash
  std::optional<uint64_t> parent;  // kStored: that of the block before it; none: it begins the prompt
  std::vector<Token> tokens;       // kStored: the block's own

  friend bool operator==(const CacheEvent&, const CacheEvent&) = default;
};

// Where the events of one engine go. Called by the engine's thread; must not block.
class CacheEventSink {
 public:
  virtual ~CacheEventSink() = default;

  // What was told so far is not all that there is: it was dropped, or nothing was told yet. The next list
  // begins with kCleared and names every block.
  virtual bool wants_everything() const = 0;
  // Takes the events of one turn, in their order; or drops them all, if there is no room.
  virtual void publish(std::vector<CacheEvent> events) = 0;
};

}  // namespace kvasir
