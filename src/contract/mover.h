// Copies bytes between memories where the host cannot reach one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace kvasir {

struct MovedRun {
  std::byte* to;
  const std::byte* from;
  uint64_t bytes;
};

// Thread-safe.
class Mover {
 public:
  virtual ~Mover() = default;

  // Returns when all bytes are there. Not ok: those at the destinations cannot be used. Throws
  // nothing.
  virtual Status move(std::span<const MovedRun> runs) = 0;
};

}  // namespace kvasir
