// The process's heap.
#pragma once

namespace kvasir {

// Has large blocks, such as the bodies of requests, go back to the system when they are freed. Otherwise the
// C library takes them from the heaps of threads as soon as one has been freed (its threshold rises to the
// size of that one), and small blocks behind them keep what they had. To be called before there are threads.
void give_back_large_blocks();

// Until the end of its scope, allocations of this thread that the system refuses wait for what others free,
// and throw nothing. For code that cannot fail: threads without a caller, callbacks of libraries in C,
// destructors. What they wait for must not need what they hold. Heeded by the operator new of the binary
// (apps/patient_new.cc).
class WaitsForMemory {
 public:
  WaitsForMemory() noexcept;
  ~WaitsForMemory();
  WaitsForMemory(const WaitsForMemory&) = delete;
  WaitsForMemory& operator=(const WaitsForMemory&) = delete;

  static bool on() noexcept;  // in this thread

 private:
  const bool before_;
};

}  // namespace kvasir
