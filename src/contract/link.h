// A link moves bytes between tiers on its own threads, never on the engine's thread.
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

// In order of urgency: bytes that a layer of this step waits for, bytes for a later step, bytes that leave
// the device.
enum class TransferPriority : uint8_t { kNeededNow, kPrefetch, kOffload };

// The address of a byte in a tier's memory.
struct MemoryAddress {
  uint64_t offset = 0;
  Tier tier = Tier::kDevice;
  friend bool operator==(const MemoryAddress&, const MemoryAddress&) = default;
};

// A contiguous range of bytes to copy from one tier to another.
struct Segment {
  MemoryAddress from;
  MemoryAddress to;
  uint64_t bytes = 0;
};

struct Transfer {
  TransferId id{};
  TransferPriority priority = TransferPriority::kPrefetch;
  // The transfer begins when these have ended, successfully or not: they use the same memory. REQUIRES, for
  // `after` and `needs`: start() was called for each of them before.
  std::vector<TransferId> after;
  std::vector<Segment> segments;
  // The transfer begins when these have ended, and fails if one of them failed: they supply its input.
  std::vector<TransferId> needs{};

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Segment& s : segments) sum += s.bytes;
    return sum;
  }
};

struct TransferDone {
  TransferId id{};
  Status status;  // not ok: the bytes at the destination are unusable
  Nanos started = 0;
  Nanos ended = 0;
};

enum class TransferState : uint8_t { kPending, kDone, kFailed };

// Counters of a disk tier.
struct DiskStats {
  uint64_t reads = 0;  // that succeeded; `writes` likewise
  uint64_t writes = 0;
  uint64_t read_bytes = 0;  // without padding
  uint64_t written_bytes = 0;
  uint64_t read_errors = 0;  // the device or the operating system reported an error
  uint64_t short_reads = 0;  // the file ended early: it was truncated
  uint64_t checksum_mismatches = 0;
  uint64_t write_errors = 0;  // including short writes
};

// Counters of a link and its measured performance.
struct LinkStats {
  // Bytes moved, [from][to].
  std::array<std::array<uint64_t, kTiers>, kTiers> bytes{};
  uint64_t transfers = 0;     // that have ended
  uint64_t failed = 0;        // of those: a device, a peer or a disk failed, or a needed transfer failed
  uint64_t cancelled = 0;     // of those: they or a needed transfer were cancelled; not in `failed`
  uint64_t queued_bytes = 0;  // of transfers that were started and have not ended
  double busy_s = 0;          // time spent moving bytes or waiting for an emulated link
  double cpu_s = 0;           // CPU time of the link's threads
  double bytes_per_s = 0;     // while moving; 0: nothing has been moved yet
  double latency_s = 0;       // of one transfer, excluding the time for its bytes
  // To peers, while something was on its way to them, all of them together; 0: nothing has been moved there
  // yet.
  double peer_bytes_per_s = 0;
  bool emulated = false;  // its speed is configured, not the machine's
  bool has_disk = false;
  DiskStats disk;
  // The same for the disk. busy_s, bytes_per_s, latency_s and emulated exclude the disk.
  double disk_busy_s = 0;       // time with at least one disk operation in flight
  double disk_bytes_per_s = 0;  // in that time; 0: nothing has been moved yet
};

// Thread-safe.
class Link {
 public:
  virtual ~Link() = default;

  // Queues a transfer. Never blocks: the frames that transfers name bound the length of the queue.
  virtual void start(Transfer transfer) = 0;

  // Cancels a transfer that has not begun: it ends as failed once the transfers that it waits for have ended
  // (later transfers rely on that order). No effect on a transfer that has begun or ended.
  virtual void cancel(TransferId id) = 0;

  // Waits until a transfer has ended, for `timeout` at most (0: returns at once). A transfer that completed()
  // has already reported, or that was never started, counts as done unless it failed.
  virtual TransferState wait(TransferId id, Nanos timeout) = 0;

  // Returns the transfers that have ended since the last call, in order of their ends. Never blocks.
  virtual std::vector<TransferDone> completed() = 0;

  // `wake` is called on a thread of the link whenever a transfer has ended. REQUIRES: `wake` returns at once,
  // and set_wake() is called before the first start(). An empty function ends the calls.
  virtual void set_wake(std::function<void()> wake) = 0;

  virtual LinkStats stats() const = 0;
};

}  // namespace kvasir
