// Asynchronous reads and writes of the disk tier, several at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/status.h"

namespace kvasir {

struct DiskRequest {
  enum class Op : uint8_t { kRead, kWrite };
  Op op = Op::kRead;
  uint64_t offset = 0;  // in the file; a multiple of 4096, as are the size and the place of `bytes`
  std::span<std::byte> bytes;
  uint64_t tag = 0;  // comes back with the completion
};

struct DiskCompletion {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes that were moved, or an errno, negated
};

// One open file. Used by one thread at a time, except for wake().
class DiskIo {
 public:
  // REQUIRES: nothing is in flight
  virtual ~DiskIo() = default;

  // Queues a request; it may reach the device only with the next flush() or wait(). The caller keeps its
  // bytes until it has completed. REQUIRES: fewer than `depth` are in flight
  virtual void queue(const DiskRequest& request) = 0;
  virtual void flush() = 0;

  // Flushes, and waits until a request has completed or wake() was called since the last wait. Returns the
  // number of completions; they are in no particular order.
  virtual size_t wait(std::span<DiskCompletion> completions) = 0;

  // Thread-safe. Ends the running wait, or else the next.
  virtual void wake() = 0;
};

// The caller owns the file, and closes it after the DiskIo is destroyed. depth: the most requests in flight.
using MakeDiskIo = std::function<Result<std::unique_ptr<DiskIo>>(int file, int depth)>;

// Through io_uring. kUnsupported: the kernel refuses it; kExhausted: no memory for it.
Result<std::unique_ptr<DiskIo>> make_uring_io(int file, int depth);

}  // namespace kvasir
