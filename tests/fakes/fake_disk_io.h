// A DiskIo for tests: it moves bytes of a real file, and fails, is short, is late or tells other bytes when
// the test says so.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/random.h"
#include "cache/tiers/disk_io.h"

namespace kvasir::test {

enum class DiskFault {
  kError,       // EIO
  kFull,        // ENOSPC
  kShort,       // half of the bytes
  kOtherBytes,  // one of them differs, without an error
  kElsewhere,   // the bytes of the place 4096 bytes on, without an error
  kLost,        // nothing moves, without an error; what is read then is what was in the buffer
};

// What the test holds. Thread-safe. It outlives the DiskIo that it makes, of which there is one at a time.
class FakeDisk {
 public:
  MakeDiskIo maker();

  // The next `times` requests of this kind meet the fault.
  void fail_next(DiskRequest::Op op, DiskFault fault, int times = 1);
  // Every request meets a fault with this chance, whichever.
  void fail_at_random(uint64_t seed, double chance);
  // What is in flight waits until it is let go: `n` of it, or all and everything later.
  void hold();
  void let_go(size_t n);
  void let_all_go();

  size_t in_flight() const;
  size_t most_in_flight() const;
  // Places in the file, in the order of being queued.
  std::vector<uint64_t> queued() const;
  uint64_t faults() const;

 private:
  friend class FakeDiskIo;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<DiskRequest> in_flight_;
  std::vector<uint64_t> queued_;
  std::deque<std::pair<DiskRequest::Op, DiskFault>> next_;
  std::optional<Random> random_;
  double chance_ = 0;
  size_t most_ = 0;
  size_t may_end_ = SIZE_MAX;
  uint64_t faults_ = 0;
  bool woken_ = false;
};

}  // namespace kvasir::test
