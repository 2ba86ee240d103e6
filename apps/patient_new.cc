// The binary's operator new: some allocations that the system refuses wait for what others free.
//
// Without memory a request or a step fails (docs/architecture.md): std::bad_alloc is thrown, and caught. What
// is in no position to fail waits: code that says so (base/heap.h), and destructors that run for an
// exception, since those of the JSON library allocate. Other small allocations wait for a second: large ones
// that fail at the same time free memory. The tests of src/ do without this file, so that every allocation
// there may fail.
#include <chrono>
#include <cstdlib>
#include <exception>
#include <new>
#include <thread>

#include "base/heap.h"

#if !defined(KVASIR_SANITIZED)  // a sanitizer has its own

namespace {

constexpr size_t kSmallBytes = 64 * 1024;
constexpr auto kPause = std::chrono::milliseconds(5);
constexpr int kPauses = 200;  // a second

}  // namespace

void* operator new(size_t bytes) {
  for (int pauses = 0;; ++pauses) {
    if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
    const bool waits = (bytes <= kSmallBytes && pauses < kPauses) || kvasir::WaitsForMemory::on() ||
                       std::uncaught_exceptions() > 0;
    if (!waits) throw std::bad_alloc();
    std::this_thread::sleep_for(kPause);
  }
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

#endif
