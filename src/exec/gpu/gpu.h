// What an executor needs of a GPU: exec/cuda has it, and tests have a fake.
//
// A device address is an ordinary pointer that the host must not follow. *Pinned* memory is the host's, and
// both sides can reach it. One thread uses a stream; the rest is thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "exec/gpu/kernel_queue.h"

namespace kvasir {

// Both ends lie in the device's memory or in pinned memory.
struct GpuCopy {
  void* to;
  const void* from;
  uint64_t bytes;
};

// Values of marks and gates grow modulo 2^32, and are less than 2^31 apart.
inline bool has_reached(uint32_t word, uint32_t value) {
  return static_cast<int32_t>(word - value) >= 0;
}

// Kernels, copies, marks and gates are the entries of a stream; of a batch of copies each may be one. Where
// there is no room for another, the call that queues it waits until the device has gone on. About a thousand
// are reported of CUDA, which documents no number; `kvasir-gpu bench link` measures it. So no more than this
// are queued behind a closed gate: the thread that waits there could not open it.
constexpr uint64_t kMostBehindAGate = 900;
// A device has so many queues for streams. Streams that share one wait for each other's gates, so no more
// streams than this are made.
constexpr int kMostStreams = 8;

// Work of the device, done in the order in which it is queued. Nothing here waits but wait() and
// wait_for_mark(), and what finds no room. After a failure the stream does nothing more, and these two give
// it each time. Words of marks and gates are in pinned memory; their values grow.
class GpuStream : public KernelQueue {
 public:
  // A copy reads its source when the stream comes to it, in any order within the batch; they do not overlap.
  virtual void copy(std::span<const GpuCopy> copies) = 0;
  // When the stream comes here: the device writes the value to the word.
  virtual void mark(uint32_t* word, uint32_t value) = 0;
  // The stream goes no further before the word has reached the value.
  virtual void gate(const uint32_t* word, uint32_t value) = 0;

  // Kernels that are launched from here to end_graph() become a *graph*, which is queued as a whole; nothing
  // else is called in between. The stream keeps it under this number: where there is one already, it takes
  // the arguments of the new kernels, which costs the host less than to make another.
  // REQUIRES: what was queued of that one has ended; if there is none, no gate that is queued is closed.
  virtual void begin_graph(size_t number) = 0;
  // False: the graph that there is cannot have these kernels, or none can be made. Then nothing is queued,
  // and there is none.
  virtual bool end_graph() = 0;
  virtual bool has_graph(size_t number) const = 0;

  // Blocks until the word has reached the value, which a mark that is queued writes. The host then sees all
  // that the device has written before. Ends early if the flag is set meanwhile.
  virtual Status wait_for_mark(const uint32_t* word, uint32_t value, const std::atomic<bool>& flag) = 0;
  // Blocks until all that is queued is done.
  virtual Status wait() = 0;
};

class Gpu {
 public:
  virtual ~Gpu() = default;

  struct Memory {
    uint64_t free_bytes;  // other programs may have taken the rest, too
    uint64_t total_bytes;
  };
  // Such as "NVIDIA H200".
  virtual std::string name() const = 0;
  // Of the device, now.
  virtual Result<Memory> memory() const = 0;

  // A product by which a kernel shows what it computes: with whole tiles and a part of one.
  struct ProductCase {
    std::string kernel;  // for people: "gemm_stream of 8 rows, 3 slices"
    int32_t tile;        // GemmArgs::tile
    int32_t rows;
    int32_t features;
  };
  // Of the kernels of products with their tiles, slices and rings: all that a stream may choose.
  virtual std::vector<ProductCase> product_cases() const = 0;

  // At a multiple of 256; the bytes hold anything. kExhausted: there is not so much left. bytes > 0.
  virtual Result<std::byte*> allocate(uint64_t bytes) = 0;
  virtual Result<std::byte*> allocate_pinned(uint64_t bytes) = 0;
  // Of either kind. REQUIRES: nothing that is queued uses it.
  virtual void release(std::byte* memory) = 0;
  virtual Result<std::unique_ptr<GpuStream>> make_stream() = 0;
  // These four wait for the device, on some devices until all that is queued is done. So REQUIRES of them: no
  // gate that is queued is closed.

  // Sets a gate's word; the device then sees all that the host has written before.
  virtual void open_gate(uint32_t* word, uint32_t value) = 0;
};

// Memory of a GPU that grows and forgets what it held.
class GpuBuffer {
 public:
  enum class Kind : uint8_t { kDevice, kPinned };
  GpuBuffer(Gpu& gpu, Kind kind) : gpu_(gpu), kind_(kind) {}
  ~GpuBuffer() { release(); }
  GpuBuffer(const GpuBuffer&) = delete;
  GpuBuffer& operator=(const GpuBuffer&) = delete;

  // kExhausted: there is no memory for it, and the buffer is empty. REQUIRES: nothing that is queued uses it.
  Status reserve(uint64_t bytes) {
    if (bytes <= bytes_) return {};
    release();
    KV_ASSIGN_OR_RETURN(memory_, kind_ == Kind::kDevice ? gpu_.allocate(bytes) : gpu_.allocate_pinned(bytes));
    bytes_ = bytes;
    return {};
  }
  uint64_t bytes() const { return bytes_; }
  template <typename T = std::byte>
  T* data() const {
    return reinterpret_cast<T*>(memory_);
  }

 private:
  void release() {
    if (memory_ != nullptr) gpu_.release(memory_);
    memory_ = nullptr;
    bytes_ = 0;
  }

  Gpu& gpu_;
  const Kind kind_;
  std::byte* memory_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace kvasir
