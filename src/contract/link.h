// A link moves bytes between tiers, on threads of its own, never on the engine's.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "contract/ids.h"

namespace kvasir {

enum class TransferId : uint64_t {};
constexpr uint64_t raw(TransferId id) {
  return static_cast<uint64_t>(id);
}

// What a layer of this step waits for goes before what a later step will want, and that before what leaves.
enum class TransferPriority : uint8_t { kNeededNow, kPrefetch, kOffload };
constexpr int kTransferPriorities = 3;

// A byte of a tier's memory.
struct MemoryAddress {
  uint64_t offset = 0;
  Tier tier = Tier::kDevice;
  friend bool operator==(const MemoryAddress&, const MemoryAddress&) = default;
};

// A run of bytes, from one tier to another.
struct Segment {
  MemoryAddress from;
  MemoryAddress to;
  uint64_t bytes = 0;
};

struct Transfer {
  TransferId id{};
  TransferPriority priority = TransferPriority::kPrefetch;
  // Begins when these have ended, in whatever way: they use the same memory. REQUIRES, of these and those
  // below: start() was called for each before.
  std::vector<TransferId> after;
  std::vector<Segment> segments;
  // Begins when these have ended, and fails if one of them has failed: they bring what it moves on.
  std::vector<TransferId> needs{};

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Segment& s : segments) sum += s.bytes;
    return sum;
  }
};

struct TransferDone {
  TransferId id{};
  Status status;  // not ok: the destination holds nothing that can be used
  Nanos started = 0;
  Nanos ended = 0;
};

enum class TransferState : uint8_t { kPending, kDone, kFailed };

// What a disk tier has done so far.
struct DiskStats {
  uint64_t reads = 0;  // that have ended well; `writes` likewise
  uint64_t writes = 0;
  uint64_t read_bytes = 0;  // without padding
  uint64_t written_bytes = 0;
  uint64_t read_errors = 0;  // the device or the system said no
  uint64_t short_reads = 0;  // the file ended early: somebody truncated it
  uint64_t checksum_mismatches = 0;
  uint64_t write_errors = 0;  // short ones included
};

// What a link has done so far, and what it was measured to do.
struct LinkStats {
  // Bytes that were moved, [from][to].
  std::array<std::array<uint64_t, kTiers>, kTiers> bytes{};
  uint64_t transfers = 0;  // that have ended
  uint64_t failed = 0;     // of those: a device, a peer or a disk did not do it, or what they need failed
  uint64_t cancelled =
      0;  // of those: given up before they began, or what they need was; none of them is in failed
  uint64_t queued_bytes = 0;  // started and not ended
  double busy_s = 0;          // moving bytes, or waiting for an emulated link
  double cpu_s = 0;           // of the link's threads
  double bytes_per_s = 0;     // while moving; 0: nothing was moved yet
  double latency_s = 0;       // of one transfer, beside its bytes
  bool emulated = false;      // its speed is set, not the machine's
  bool has_disk = false;
  DiskStats disk;
  // Of the disk, to which busy_s, bytes_per_s, latency_s and emulated do not refer.
  double disk_busy_s = 0;       // some of its pieces were on their way
  double disk_bytes_per_s = 0;  // in that time; 0: nothing was moved yet
};

// Thread-safe.
class Link {
 public:
  virtual ~Link() = default;

  // Queues a transfer. Never blocks: what can be queued is bounded by the frames that it names.
  virtual void start(Transfer transfer) = 0;

  // Gives up a transfer that has not begun: it ends, failed, as soon as those that it comes after have ended
  // (who comes after it counts on that). One that moves already, or has ended, does not notice.
  virtual void cancel(TransferId id) = 0;

  // Waits until a transfer has ended, or for `timeout` (0: asks). A transfer whose end completed() has told,
  // or that nobody started, counts as done, unless it failed.
  virtual TransferState wait(TransferId id, Nanos timeout) = 0;

  // Transfers that have ended since the last call, in the order in which they ended. Never blocks.
  virtual std::vector<TransferDone> completed() = 0;

  // `wake` is called whenever a transfer has ended, on a thread of the link's, and returns at once.
  // Before the first start(); an empty one ends it.
  virtual void set_wake(std::function<void()> wake) = 0;

  virtual LinkStats stats() const = 0;
};

}  // namespace kvasir
