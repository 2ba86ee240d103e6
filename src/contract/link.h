// A link moves bytes between tiers, on threads of its own, never on the engine's.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "contract/step.h"

namespace kvasir {

enum class TransferId : uint64_t {};

// What a layer of this step waits for goes before what a later step will want, and that before what leaves.
enum class TransferPriority : uint8_t { kNeededNow, kPrefetch, kOffload };

struct Transfer {
  TransferId id{};
  FrameAddress from;
  FrameAddress to;
  uint64_t bytes = 0;
  TransferPriority priority = TransferPriority::kPrefetch;
};

struct TransferDone {
  TransferId id{};
  Status status;  // not ok: the destination holds nothing that can be used
  Nanos started = 0;
  Nanos ended = 0;
};

// Thread-safe.
class Link {
 public:
  virtual ~Link() = default;

  // Queues a transfer. kExhausted: the queue is full, nothing was queued.
  virtual Status start(const Transfer& transfer) = 0;

  // Transfers that have ended since the last call, in the order in which they ended. Never blocks.
  virtual std::vector<TransferDone> completed() = 0;
};

}  // namespace kvasir
