// The binary's operator new: a small allocation that the system refuses waits for what others free.
//
// Without memory a request or a step fails (docs/architecture.md): std::bad_alloc is thrown, and caught. But
// destructors of the JSON library allocate, and where one throws the process ends. Their allocations are
// small, and large ones that fail at the same time free memory; so small ones need only wait. The tests of
// src/ do without this file, so that every allocation there may fail.
#include <chrono>
#include <cstdlib>
#include <exception>
#include <new>
#include <thread>

#if !defined(KVASIR_SANITIZED)  // a sanitizer has its own

namespace {

constexpr size_t kSmallBytes = 64 * 1024;
constexpr auto kPause = std::chrono::milliseconds(5);
constexpr int kPauses = 200;  // a second; what is destroyed by an exception waits as long as it must

}  // namespace

void* operator new(size_t bytes) {
  for (int pauses = 0;; ++pauses) {
    if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
    const bool waits = pauses < kPauses || std::uncaught_exceptions() > 0;
    if (bytes > kSmallBytes || !waits) throw std::bad_alloc();
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
