// Work that must be done although memory is short.
#pragma once

#include <chrono>
#include <new>
#include <thread>

namespace kvasir {

// Calls `f`, and again after a pause as long as it throws std::bad_alloc: other threads may free memory.
// Returns what it returns. REQUIRES: a call that has thrown has done nothing that the next one repeats.
template <typename F>
decltype(auto) patiently(const F& f) {
  for (;;) {
    try {
      return f();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

}  // namespace kvasir
