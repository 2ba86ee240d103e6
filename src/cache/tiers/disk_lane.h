// Pieces on their way between memory and the disk: several at once, each through a buffer of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "cache/tiers/disk_file.h"
#include "contract/mover.h"

namespace kvasir {

// A piece that moves: between `memory` and the tier's byte `offset`.
struct DiskJob {
  DiskRequest::Op op = DiskRequest::Op::kRead;
  uint64_t offset = 0;
  std::byte* memory = nullptr;
  Mover* mover = nullptr;  // copies between `memory` and the buffer; null: memcpy does
  uint64_t bytes = 0;
  void* of = nullptr;  // this and the following fields are for the caller
  size_t segment = 0;
  Nanos taken = 0;
};

// The tiers' memory is not aligned as the device requires, so bytes pass through buffers, one for each
// request in flight. This also means that a piece is checked before any of it reaches memory.
//
// Used by one thread, except for wake(). It waits for a mover's copies.
class DiskLane {
 public:
  struct Ended {
    DiskJob job;
    Status status;
  };

  // The most jobs that a call of wait() appends. Between so many completions the lane looks for more to
  // begin, so that the device is never idle.
  static constexpr size_t kEndedAtOnce = 4;

  // The file outlives it. buffers: buffer_bytes() of it, at a multiple of kDiskAlign, which outlive it, too;
  // empty: it has its own.
  explicit DiskLane(DiskFile& file, std::span<std::byte> buffers = {});
  // REQUIRES: idle()
  ~DiskLane();
  DiskLane(const DiskLane&) = delete;
  DiskLane& operator=(const DiskLane&) = delete;

  size_t room() const { return free_.size(); }  // jobs that can begin
  bool idle() const { return free_.size() == jobs_.size(); }

  // The memory of a write is read during the call. Not ok: that failed, and the job has ended.
  // REQUIRES: room() > 0; the file has_place_for() the piece
  Status begin(const DiskJob& job);
  // Waits until a job has ended or wake() was called, and appends the jobs that have ended.
  void wait(std::vector<Ended>& ended);
  void wake() { file_.io().wake(); }

 private:
  struct DeleteAligned {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{kBufferAlign}); }
  };
  struct InFlight {
    DiskJob job;
    uint64_t checksum = 0;  // of what is written
  };
  static constexpr size_t kBufferAlign = 2 * kMiB;  // so that the kernel can give large pages

  std::byte* buffer(size_t slot) const { return buffers_ + slot * buffer_bytes_; }
  Status end(size_t slot, int64_t result);

  DiskFile& file_;
  const uint64_t buffer_bytes_;
  std::unique_ptr<std::byte[], DeleteAligned> own_buffers_;
  std::byte* buffers_;
  std::vector<InFlight> jobs_;  // by slot
  std::vector<size_t> free_;    // slots
  uint64_t unflushed_ = 0;      // bytes
};

}  // namespace kvasir
